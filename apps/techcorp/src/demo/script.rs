//! The scripted fault: begins it, ends it, and says what it did.

use std::sync::mpsc;
use std::time::Duration;

use mamparo::call::clock;
use mamparo::core::time::Moment;
use mamparo::messaging::{AnyBroker, Broker, Confirm, Message};

use super::books::Books;
use super::engines::Engines;
use super::scenario::{Fault, Scenario};
use super::staff::Staff;
use super::{DemoError, servers};
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
    /// Events in outboxes at the end of the broker's absence.
    pub waiting: u64,
    /// A connection to the database was cut by its restart.
    pub cut: bool,
}

/// Can this scenario be played on these engines?
///
/// # Errors
/// Why not, and the way out.
pub fn playable(scenario: &Scenario, engines: &Engines) -> Result<(), DemoError> {
    let no_way = |why| Err(DemoError::NoWay { scenario: scenario.name, why });
    let Engines { store, broker, commands } = engines;
    let stops = commands.broker_stop.is_some() && commands.broker_start.is_some();
    let (broker_down, restart) =
        (scenario.fault == Fault::BrokerDown, scenario.fault == Fault::DatabaseRestart);
    if broker_down && broker.is_some() && !stops {
        return no_way(
            "RabbitMQ is stopped by your commands, --broker-stop and --broker-start; \
             cargo xtask demo brings servers of its own",
        );
    }
    if restart && store.is_none() {
        return no_way(
            "SQLite has no server to restart; give --store postgres://… and --store-restart, or \
             cargo xtask demo",
        );
    }
    if restart && commands.store_restart.is_none() {
        return no_way(
            "PostgreSQL is restarted by your command, --store-restart; \
             cargo xtask demo brings servers of its own",
        );
    }
    Ok(())
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
    let mut locked = None;
    note(format!("fault begins: {}", scenario.about));
    match scenario.fault {
        Fault::None => {}
        Fault::CatalogDown => {
            staff.stop("catalog").await?;
        }
        Fault::CatalogSlow(delay) => staff.sky("catalog", Sky::Slow(delay)).await?,
        Fault::PspUnavailable => staff.sky("psp", Sky::Unavailable).await?,
        Fault::PspLate(delay) => staff.sky("psp", Sky::Late(delay)).await?,
        Fault::Poison => told.poisoned = poison(staff).await?,
        Fault::PaymentsKilled => told.killed_mid_charge = kill_mid_charge(staff).await?,
        Fault::PaymentsGone => {
            staff.stop("payments").await?;
        }
        Fault::BrokerDown => locked = servers::stop_broker(staff.site()).await?,
        Fault::DatabaseRestart => told.cut = servers::restart_store(staff.site()).await?,
    }
    clock::sleep_until(ends).await;
    match scenario.fault {
        Fault::None | Fault::Poison | Fault::DatabaseRestart => {}
        Fault::CatalogDown => staff.start("catalog").await?,
        Fault::CatalogSlow(_) => staff.sky("catalog", Sky::Clear).await?,
        Fault::PspUnavailable | Fault::PspLate(_) => staff.sky("psp", Sky::Clear).await?,
        Fault::PaymentsKilled | Fault::PaymentsGone => staff.start("payments").await?,
        Fault::BrokerDown => told.waiting = servers::start_broker(staff.site(), locked).await?,
    }
    note("fault ends".to_owned());
    Ok(told)
}

/// Sends each kind of malformed message to every consumer's queue. How many.
async fn poison(staff: &Staff) -> Result<u64, DemoError> {
    let site = staff.site();
    let broker = AnyBroker::open_existing(&site.engines().broker_in(site.dir())).await?;
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
    broker.close().await;
    Ok(sent)
}

/// Makes the PSP slow to answer, waits until it has charged somebody who has not heard of it, and
/// kills payments at that moment.
async fn kill_mid_charge(staff: &mut Staff) -> Result<u64, DemoError> {
    const LATE: Duration = Duration::from_millis(700);
    const UNBOOKED: &str = "SELECT COUNT(*) FROM psp.keys k JOIN payments.charges c
         ON c.order_id = k.order_id WHERE k.status = 'CHARGED' AND c.state = 'STARTED'";
    let books = Books::open(staff.site().engines(), staff.site().dir()).await?;
    staff.sky("psp", Sky::Late(LATE)).await?;
    let give_up = clock::now().plus(Duration::from_secs(10));
    while books.count(UNBOOKED).await? == 0 && clock::now() < give_up {
        clock::sleep_until(clock::now().plus(Duration::from_millis(10))).await;
    }
    staff.kill("payments").await?;
    staff.sky("psp", Sky::Clear).await?;
    let unbooked = books.count(UNBOOKED).await?;
    books.close().await;
    Ok(unbooked)
}
