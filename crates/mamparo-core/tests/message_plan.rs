//! Plans: what a broker's words come to, and what follows from what is there.

use std::time::Duration;

use mamparo_core::message::capabilities::{Capabilities, Engine, Version};
use mamparo_core::message::headers::{ATTEMPTS, ATTEMPTS_QUEUE, Headers, LAST_FAILURE, NOT_BEFORE};
use mamparo_core::message::topology::alarm::{Fill, fill, late, returned};
use mamparo_core::message::topology::mismatch::{Mismatch, Next, Present, Probe, read};
use mamparo_core::message::topology::plan::{
    Action, Difference, Migration, Plan, Seen, Subject, Theirs, subjects,
};
use mamparo_core::message::topology::{Argument, QueuePolicy, Role};
use mamparo_core::time::WallTime;

fn rabbit() -> Capabilities {
    Capabilities::rabbitmq(Version::new(3, 10, 8))
}

fn policy() -> QueuePolicy {
    QueuePolicy::new("orders.saga", "team-orders").bind("order.created")
}

fn there(differences: Vec<Difference>) -> Seen {
    Seen::There { differences, depth: Some(3) }
}

fn differs(key: &str, ours: i64, theirs: i64) -> Difference {
    Difference {
        key: key.to_owned(),
        ours: Some(Argument::Number(ours)),
        theirs: Theirs::Value(Argument::Number(theirs)),
    }
}

/// What RabbitMQ 3.10.8 said, word for word.
#[test]
fn the_brokers_words_are_read_as_they_are_and_anything_else_is_none() {
    let text =
        |value: &str, kind: Option<&str>| Present::Text(value.to_owned(), kind.map(str::to_owned));
    let queue = "PRECONDITION_FAILED - inequivalent arg 'KEY' for queue 'q' in vhost '/': received";
    for (said, key, theirs) in [
        (
            "none but current is the value '30000' of type 'long'",
            "x-message-ttl",
            text("30000", Some("long")),
        ),
        ("'10000' but current is '30000'", "x-message-ttl", text("30000", None)),
        ("'zzz' but current is ''", "x-dead-letter-exchange", text("", None)),
        ("the value '77000' of type 'long' but current is none", "x-expires", Present::NotSet),
        (
            "none but current is the value 'quorum' of type 'longstr'",
            "x-queue-type",
            text("quorum", Some("longstr")),
        ),
        ("'false' but current is 'true'", "durable", text("true", None)),
        (
            "none but current is the value 'true' of type 'bool'",
            "x-single-active-consumer",
            text("true", Some("bool")),
        ),
        // After 255 bytes there is no more, and three dots.
        ("'10000' but curr...", "x-message-ttl", Present::CutOff),
        ("none but current is the value '300...", "x-message-ttl", Present::CutOff),
        ("none but current is the value '30000' of ty...", "x-message-ttl", Present::CutOff),
        // A name may hold the very words.
        (
            "' but current is 'x' but current is 'a but current is b'",
            "x-dead-letter-routing-key",
            Present::CutOff,
        ),
    ] {
        let said = format!("{} {said}", queue.replace("KEY", key));
        assert_eq!(read(&said), Some(Mismatch { key: key.to_owned(), theirs }), "{said}");
    }
    let exchange = "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': \
                    received 'topic' but current is 'direct'";
    assert_eq!(read(exchange).unwrap().theirs, text("direct", None));
    for other in ["", "NOT_FOUND - no queue 'q' in vhost '/'", "inequivalent arg 'x"] {
        assert_eq!(read(other), None, "{other}");
    }
}

#[test]
fn a_probe_adopts_what_is_there_until_nothing_differs() {
    let topology = policy().topology(&rabbit());
    let mut probe = Probe::new(&topology.queues[2].arguments);
    let mut tell = |said: &str| probe.tell(&read(said).unwrap());
    let arg = |key: &str| format!("inequivalent arg '{key}' for queue 'q' in vhost '/': received");
    let ttl = format!("{} '30000' but current is '10000'", arg("x-message-ttl"));
    assert_eq!(tell(&ttl), Next::Again);
    let type_ = format!("{} 'quorum' but current is 'classic'", arg("x-queue-type"));
    assert_eq!(tell(&type_), Next::Again);
    let key = format!("{} 'a' but current is '7'", arg("x-dead-letter-routing-key"));
    assert_eq!(tell(&key), Next::Again);
    let none = format!("{} the value 'x' of type 'longstr' but current is none", arg("x-overflow"));
    assert_eq!(tell(&none), Next::Again);
    let more = format!("{} none but current is the value '5' of type 'long'", arg("x-expires"));
    assert_eq!(tell(&more), Next::Again);
    let durable = format!("{} 'true' but current is 'false'", arg("durable"));
    assert_eq!(tell(&durable), Next::Again);
    let auto = format!("{} 'false' but current is 'true'", arg("auto_delete"));
    assert_eq!(tell(&auto), Next::Again);
    assert_eq!(tell(&ttl), Next::Stop, "the same words twice: no loop");
    assert!(!probe.durable() && probe.auto_delete());
    let adopted = probe.arguments();
    assert_eq!(adopted["x-message-ttl"], Argument::Number(10_000));
    assert_eq!(adopted["x-queue-type"], Argument::Text("classic".to_owned()));
    assert_eq!(adopted["x-dead-letter-routing-key"], Argument::Text("7".to_owned()), "as ours is");
    assert_eq!(adopted["x-expires"], Argument::Number(5));
    assert!(!adopted.contains_key("x-overflow"));
    let shown: Vec<String> = probe.into_differences().iter().map(ToString::to_string).collect();
    let expected = [
        "x-message-ttl: ours 30000, there 10000",
        "x-queue-type: ours quorum, there classic",
        "x-dead-letter-routing-key: ours orders.saga, there 7",
        "x-overflow: ours reject-publish, there not set",
        "x-expires: ours not set, there 5",
        "durable: ours true, there false",
        "auto_delete: ours false, there true",
    ];
    assert_eq!(shown, expected);
    let mut cut = Probe::new(&topology.queues[2].arguments);
    let theirs = Present::CutOff;
    assert_eq!(cut.tell(&Mismatch { key: "x-message-ttl".to_owned(), theirs }), Next::Stop);
    let found = cut.into_differences();
    assert!(found[0].to_string().contains("cut off"), "{}", found[0]);
}

#[test]
fn what_is_missing_is_made_in_order_and_what_is_alike_is_kept() {
    let plan = Plan::new(
        &policy(),
        &rabbit(),
        vec![Seen::Missing, Seen::Missing, there(vec![]), Seen::Missing, Seen::Hidden],
    );
    let shown: Vec<String> = plan
        .steps
        .iter()
        .map(|s| format!("{} {} {:?}", s.subject.kind(), s.subject, s.action))
        .collect();
    let expected = [
        "exchange events Create",
        "queue orders.saga.dlq Create",
        "queue orders.saga Keep",
        "queue orders.saga.retry Create",
        "binding events order.created -> orders.saga Ensure",
    ];
    assert_eq!(shown, expected);
    assert_eq!(plan.steps[2].depth, Some(3));
    assert!(plan.drifts() && !plan.refused());
    let all = subjects(&plan.topology).iter().map(|_| there(vec![])).collect();
    let alike = Plan::new(&policy(), &rabbit(), all);
    assert!(!alike.drifts() && !alike.refused());
    let unseen = Plan::new(&policy(), &rabbit(), vec![]);
    assert!(unseen.steps.iter().all(|step| step.action == Action::Ensure), "never invented");
}

#[test]
fn lesson_t04_another_delay_is_a_difference_with_a_way_and_no_crash() {
    let ten = QueuePolicy { retry_delay: Duration::from_secs(10), ..policy() };
    let seen = |differences: Vec<Difference>| {
        vec![there(vec![]), there(vec![]), there(vec![]), there(differences), Seen::Hidden]
    };
    let ttl = vec![differs("x-message-ttl", 10_000, 30_000)];
    let plan = Plan::new(&ten, &rabbit(), seen(ttl.clone()));
    assert!(plan.refused() && plan.drifts());
    let Action::Refuse(differences, way) = &plan.steps[3].action else {
        panic!("{:?}", plan.steps[3]);
    };
    assert_eq!(*differences, ttl);
    let tier = Migration::Tier {
        setting: "retry_tiers = [\"10s\"] instead of retry_delay".to_owned(),
        queue: "orders.saga.retry.10s".to_owned(),
    };
    assert_eq!(*way, tier);
    // The tier that it leads to is another queue: its plan has nothing to refuse.
    let tiers = QueuePolicy { retry_tiers: vec![Duration::from_secs(10)], ..policy() };
    let there_already = |subject: &Subject| match subject {
        Subject::Queue(name, _) if name.ends_with(".10s") => Seen::Missing,
        Subject::Queue(..) | Subject::Exchange(_) => there(vec![]),
        Subject::Binding(_) => Seen::Hidden,
    };
    let topology = tiers.topology(&rabbit());
    let next =
        Plan::new(&tiers, &rabbit(), subjects(&topology).iter().map(there_already).collect());
    assert!(!next.refused(), "{next:?}");
    assert_eq!(next.steps[3].action, Action::Create);
    // The embedded broker changes its tables.
    let embedded = Capabilities::embedded();
    let plan = Plan::new(&ten, &embedded, vec![there(vec![]), there(vec![]), there(ttl.clone())]);
    assert_eq!(plan.steps[2].action, Action::Change(ttl));
    assert!(!plan.refused() && plan.drifts());
}

#[test]
fn any_other_difference_leads_to_the_next_version() {
    let differences = || vec![differs("x-delivery-limit", 100, 20)];
    for (policy, version) in [(policy(), 2), (policy().versioned(2), 3)] {
        let seen = vec![Seen::Missing, Seen::Missing, there(differences())];
        let plan = Plan::new(&policy, &rabbit(), seen);
        let way = Migration::Version {
            setting: format!("version = {version}"),
            queue: format!("orders.saga.v{version}"),
        };
        assert_eq!(plan.steps[2].action, Action::Refuse(differences(), way));
    }
    let foreign = Difference {
        key: "type".to_owned(),
        ours: Some(Argument::Text("topic".to_owned())),
        theirs: Theirs::Value(Argument::Text("direct".to_owned())),
    };
    let plan = Plan::new(&policy(), &rabbit(), vec![there(vec![foreign.clone()])]);
    assert_eq!(plan.steps[0].action, Action::Refuse(vec![foreign], Migration::Exchange));
    let ways = plan.steps.iter().filter_map(|step| match &step.action {
        Action::Refuse(_, way) => Some(way.to_string()),
        Action::Create | Action::Keep | Action::Change(_) | Action::Ensure => None,
    });
    assert!(ways.into_iter().all(|words| words.len() > 20));
}

#[test]
fn messages_c05_a_waiting_room_is_late_after_its_delay_and_a_margin() {
    let seconds = Duration::from_secs;
    for (age, delay, by) in [
        (0, 30, None),
        (30, 30, None),
        (90, 30, None),
        (91, 30, Some(1)),
        (660, 600, None),
        (661, 600, Some(1)),
        (3_960, 3_600, None),
        (4_000, 3_600, Some(40)),
    ] {
        assert_eq!(late(seconds(age), seconds(delay)), by.map(seconds), "{age} s of {delay} s");
    }
    assert_eq!(late(Duration::MAX, Duration::MAX), None);
}

#[test]
fn messages_c05_a_message_that_came_back_tells_how_late_its_room_is() {
    let failed = WallTime::from_unix_millis(1_796_025_909_000);
    let after = |seconds| failed.plus(Duration::from_secs(seconds));
    let copy = |policy: &QueuePolicy, attempts: u32| {
        let mut headers = Headers::new();
        headers.insert(ATTEMPTS.to_owned(), attempts.to_string());
        headers.insert(ATTEMPTS_QUEUE.to_owned(), policy.queue.clone());
        headers.insert(LAST_FAILURE.to_owned(), failed.to_string());
        headers
    };
    let late = |headers: &Headers, policy: &QueuePolicy, now| {
        returned(headers, policy, now)
            .map(|back| (back.age.as_secs(), back.late.map(|l| l.as_secs())))
    };
    let single = policy();
    assert_eq!(late(&Headers::new(), &single, after(9)), None, "a first attempt");
    assert_eq!(late(&copy(&single, 0), &single, after(9)), None);
    for (seconds, by) in [(30, None), (90, None), (100, Some(10))] {
        assert_eq!(late(&copy(&single, 1), &single, after(seconds)), Some((seconds, by)));
    }
    let tiers = [5, 3_600].map(Duration::from_secs).to_vec();
    let tiers = QueuePolicy { retry_tiers: tiers, ..policy() };
    assert_eq!(late(&copy(&tiers, 1), &tiers, after(66)), Some((66, Some(1))));
    for attempts in [2, 3] {
        let headers = copy(&tiers, attempts);
        assert_eq!(late(&headers, &tiers, after(3_960)), Some((3_960, None)));
        assert_eq!(late(&headers, &tiers, after(3_970)), Some((3_970, Some(10))));
    }
    // Somebody asked for a longer wait.
    let mut asked = copy(&single, 1);
    asked.insert(NOT_BEFORE.to_owned(), after(300).unix_millis().to_string());
    assert_eq!(late(&asked, &single, after(360)), Some((360, None)));
    // In the count of another queue, or without a time, it says nothing.
    let mut foreign = copy(&single, 1);
    foreign.insert(ATTEMPTS_QUEUE.to_owned(), "payments".to_owned());
    let mut undated = copy(&single, 1);
    undated.insert(LAST_FAILURE.to_owned(), "yesterday".to_owned());
    for headers in [foreign, undated] {
        assert_eq!(late(&headers, &single, after(1_000)), None);
    }
    let second = policy().versioned(2);
    assert_eq!(late(&copy(&second, 1), &second, after(91)), Some((91, Some(1))));
}

#[test]
fn messages_c07_a_dead_letter_queue_is_watched_from_outside() {
    for (depth, expected) in [
        (0, Fill::Fine),
        (79, Fill::Fine),
        (80, Fill::Near),
        (99, Fill::Near),
        (100, Fill::Full),
        (u64::MAX, Fill::Full),
    ] {
        assert_eq!(fill(depth, 100), expected, "{depth}");
    }
}

#[test]
fn what_a_release_can_do_is_a_table() {
    for (release, at_least_once, delayed_retry, limit) in [
        ("3.9.29", false, false, None),
        ("3.10.8", true, false, None),
        ("3.13.7", true, false, None),
        ("4.0.0-rc.1", true, false, Some(20)),
        ("4.1", true, false, Some(20)),
        ("4.3.0+build.7", true, true, Some(20)),
        ("10.0.1", true, true, Some(20)),
    ] {
        let version = Version::parse(release).unwrap();
        let can = Capabilities::rabbitmq(version);
        assert_eq!(can.engine, Engine::RabbitMq);
        let seen = (can.at_least_once, can.delayed_retry, can.delivery_limit_default);
        assert_eq!(seen, (at_least_once, delayed_retry, limit), "{release}");
    }
    for nonsense in ["", "3", "x.1", "3.y", "99999999999.1"] {
        assert_eq!(Version::parse(nonsense), None, "{nonsense}");
    }
    assert_eq!(Capabilities::rabbitmq(Version::new(3, 10, 8)).to_string(), "RabbitMQ 3.10.8");
    assert_eq!(Capabilities::embedded().to_string(), "the embedded broker");
    assert_eq!(Subject::Queue("q".to_owned(), Role::Main).kind(), "queue");
}
