//! The scripted fault: begins it, ends it, and says what it did.

use std::sync::mpsc;
use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::time::Moment;
use mamparo::messaging::{Broker, Confirm, EmbeddedBroker, Message};

use super::DemoError;
use super::books;
use super::scenario::{Fault, Scenario};
use super::staff::Staff;
use crate::weather::Sky;

/// The consumers' queues.
const QUEUES: [&str; 4] =
    ["orders.saga", "inventory.orders", "payments.orders", "notifications.orders"];

/// What a consumer can't make anything of: no JSON, a missing field, a type from nowhere.
const POISON: [(&str, &str); 3] = [
    ("order.cancelled", "{\"orderId\": \"o-1\""),
    ("order.cancelled", "{}"),
    ("moon.landed", "{\"orderId\": \"o-1\"}"),
];

/// What the script has to tell the verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Told {
    /// Malformed messages that were sent.
    pub poisoned: u64,
    /// Charges that payments had begun and not booked when they were killed.
    pub killed_mid_charge: u64,
}

/// Plays the fault of `scenario` between two moments.
///
/// # Errors
/// When a service does not stop or start as the script wants.
pub async fn play(
    scenario: &Scenario,
    staff: &mut Staff,
    begins: Moment,
    ends: Moment,
    notes: &mpsc::Sender<String>,
) -> Result<Told, DemoError> {
    // The live view may be gone when the demo has failed; then nobody needs the note.
    let note = |text: String| notes.send(text).unwrap_or_default();
    clock::sleep_until(begins).await;
    let mut told = Told::default();
    note(format!("fault begins: {}", scenario.about));
    match scenario.fault {
        Fault::None => {}
        Fault::CatalogDown => {
            staff.stop("catalog").await?;
        }
        Fault::CatalogSlow(delay) => staff.weather("catalog").set(Sky::Slow(delay)),
        Fault::PspUnavailable => staff.weather("psp").set(Sky::Unavailable),
        Fault::PspLate(delay) => staff.weather("psp").set(Sky::Late(delay)),
        Fault::Poison => told.poisoned = poison(&staff.site().broker()).await?,
        Fault::PaymentsKilled => told.killed_mid_charge = kill_mid_charge(staff).await?,
        Fault::PaymentsGone => {
            staff.stop("payments").await?;
        }
    }
    clock::sleep_until(ends).await;
    match scenario.fault {
        Fault::None | Fault::Poison => {}
        Fault::CatalogDown => staff.start("catalog").await?,
        Fault::CatalogSlow(_) => staff.weather("catalog").set(Sky::Clear),
        Fault::PspUnavailable | Fault::PspLate(_) => staff.weather("psp").set(Sky::Clear),
        Fault::PaymentsKilled | Fault::PaymentsGone => staff.start("payments").await?,
    }
    note("fault ends".to_owned());
    Ok(told)
}

/// Sends each kind of malformed message to every consumer's queue. How many.
async fn poison(broker: &str) -> Result<u64, DemoError> {
    let broker = EmbeddedBroker::open_existing(broker).await?;
    let mut sent = 0;
    for queue in QUEUES {
        for (kind, body) in POISON {
            let message = Message {
                id: format!("poison/{queue}.dlq/{sent}"),
                kind: kind.to_owned(),
                key: String::new(),
                exchange: String::new(),
                routing_key: queue.to_owned(),
                headers: Default::default(),
                body: body.as_bytes().to_vec(),
            };
            let confirm = broker.publish("", queue, &message).await;
            if confirm != Confirm::Confirmed {
                return Err(DemoError::NotTaken { queue, confirm });
            }
            sent += 1;
        }
    }
    Ok(sent)
}

/// Makes the PSP slow to answer, waits until it has charged somebody who has not heard of it, and
/// kills payments at that moment.
async fn kill_mid_charge(staff: &mut Staff) -> Result<u64, DemoError> {
    const LATE: Duration = Duration::from_millis(700);
    const UNBOOKED: &str = "SELECT COUNT(*) FROM psp.keys k JOIN payments.charges c
         ON c.order_id = k.order_id WHERE k.status = 'CHARGED' AND c.state = 'STARTED'";
    let mut books = books::open(staff.site().dir()).await?;
    let psp = staff.weather("psp");
    psp.set(Sky::Late(LATE));
    let give_up = clock::now().plus(Duration::from_secs(10));
    while books::count(&mut books, UNBOOKED).await? == 0 && clock::now() < give_up {
        clock::sleep_until(clock::now().plus(Duration::from_millis(10))).await;
    }
    staff.kill("payments").await?;
    psp.set(Sky::Clear);
    Ok(books::count(&mut books, UNBOOKED).await?)
}
