//! The on-call's first page, made from what runs: the saga's table and every service's policy file.

use std::fmt::Write as _;

use mamparo::core::message::topology::WaitingRoom;
use mamparo::core::saga::order::{ORDER, Then};
use mamparo::service::telemetry::{METRICS, Metric};
use mamparo::topology::{self, Problems};

use crate::shop::{SERVICES, default_policy};

const HEAD: &str = "\
# TechCorp: the on-call's first page

Made from the services' policy files and the order's table; a test keeps it true. After changing those, run
`UPDATE_HANDBOOK=1 cargo test -p techcorp --lib handbook`.

## Start it

```sh
cargo run --release -p techcorp -- all           # everything in one process; books in techcorp-data
cargo run --release -p techcorp -- all --store postgres://HOST/techcorp --broker amqp://USER:PASSWORD@HOST/VHOST
curl -i http://127.0.0.1:8080/v1/orders -H 'content-type: application/json' -H 'Idempotency-Key: k-1' \\
    -d '{\"customerId\": \"c-1\", \"lines\": [{\"productId\": \"p-1\", \"quantity\": 2}]}'
```

Products are `p-1` to `p-20`, customers `c-1` to `c-40`. The gateway listens on 127.0.0.1:8080; the others on
`listen` of their files in `apps/techcorp/config`. Ctrl-C stops it in order.

On PostgreSQL each service has a schema of its own in the shop's database (`service.store` in its file is
`postgres://HOST/techcorp?options[search_path]=orders`); database and schema are made when they are missing. A pooler
that refuses `options` needs a database or a role with its own `search_path` for each service instead. `cargo xtask demo`
plays the demo on servers of its own, each service in its own process, `broker-down` and `database-restart` included.

## What you can ask of it

| request | answer |
|---|---|
| `POST /v1/orders` `{customerId, lines: [{productId, quantity}]}` with `Idempotency-Key` | 201, `Location`, `{id, status: \"PENDING\", …}`; 503 with `Retry-After` while catalog or customers are away |
| `GET /v1/orders/{id}` | the order, with its status and, if cancelled, the reason |
| `GET /v1/orders?customerId=` | through the BFF with product names, or `\"partial\": true` |
| `GET /v1/products?ids=a,b` | products and prices; with `Age` when the catalog answers from its cache; `Cache-Status` says what it did |
| `GET /v1/customers/{id}` | a customer |
| `POST /v1/reservations` with `Idempotency-Key` | 201, or 409 when goods are short |
| `/health/live` · `/health/ready` · `/metrics` | on every service; ready (200) also says in `detail` what a paused consumer waits for |

Money is integer cents. Clients name themselves by `x-client-id`; put an authentication in front of the gateway
before strangers reach it.

## What it says

`MAMPARO_LOG=warn` leaves what went wrong: each line names service and dependency, attempt and wait, and stands
under its request (`request_id`) or message (`queue`, and `key`, which is the order's id). `MAMPARO_LOG_FORMAT=json`
is for machines. Logs go to stderr. The metrics are [below](#metrics).

## An order's life

";

/// The page as Markdown.
///
/// # Errors
/// Mistakes of the policy files that come with the services; a test shows that there are none.
pub fn page() -> Result<String, Problems> {
    let mut text = format!("{HEAD}```mermaid\n{}```\n\n", ORDER.to_mermaid());
    text.push_str("| state | on | then | and | because |\n|---|---|---|---|---|\n");
    for rule in ORDER.rules {
        let (row, and) = (rule.row, action(rule.then));
        let (from, to) = (row.from.name(), row.to.name());
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {from} | {:?} | {to} | {and} | {} |", row.on, row.why);
    }
    text.push_str("\n## Who calls whom, and within which limits\n");
    for service in SERVICES {
        let file = default_policy(service).unwrap_or_default();
        let policy = topology::parse(&format!("{service}.toml"), file)?;
        if !policy.dependencies.is_empty() {
            let table = topology::dependency_table(&policy).replacen("# ", "### ", 1);
            let _ = write!(text, "\n{table}");
        }
    }
    text.push_str(
        "\n## Queues\n\n| queue | owner | events | attempts | delay | waits at | runbook |\n",
    );
    text.push_str("|---|---|---|---|---|---|---|\n");
    for service in SERVICES {
        let file = default_policy(service).unwrap_or_default();
        for queue in topology::parse(&format!("{service}.toml"), file)?.queues {
            let events: Vec<&str> = queue.events.iter().map(|event| event.value.as_str()).collect();
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} | [dead letters]({}) |",
                queue.name.value,
                queue.owner.value,
                events.join(", "),
                queue.attempts.value,
                topology::show_duration(queue.retry_delay.value),
                waits_at(queue.waiting_room.value),
                queue.runbook.value.trim_start_matches("docs/"),
            );
        }
    }
    text.push_str("\n## Metrics\n\n| metric | kind | what |\n|---|---|---|\n");
    for &Metric { name, kind, help } in METRICS {
        let kind = format!("{kind:?}").to_lowercase();
        let _ = writeln!(text, "| `{name}` | {kind} | {help} |");
    }
    Ok(text)
}

fn waits_at(room: WaitingRoom) -> &'static str {
    match room {
        WaitingRoom::Tiers | WaitingRoom::Broker => "the broker",
        WaitingRoom::Parked => "the service's own database",
    }
}

fn action(then: Then) -> String {
    match then {
        Then::Nothing => String::new(),
        Then::Confirm => "emit `order.confirmed`".to_owned(),
        Then::Cancel(reason) => format!("emit `order.cancelled` ({})", reason.code()),
        Then::CancelAgain => "emit `order.cancelled` again".to_owned(),
        Then::Known => "count it".to_owned(),
        Then::NoteReleased => "note that the goods are free".to_owned(),
        Then::NoteRefunded => "note that the money went back".to_owned(),
        Then::Alarm => "log it as an error".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handbook_says_what_runs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/techcorp.md");
        let page = page().unwrap();
        #[expect(clippy::disallowed_methods, reason = "asks whoever runs the tests, not a service")]
        let update = std::env::var_os("UPDATE_HANDBOOK").is_some();
        if update {
            std::fs::write(path, &page).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, page, "run UPDATE_HANDBOOK=1 cargo test -p techcorp --lib handbook");
    }
}
