//! Every queue, loop, buffer and wait has a limit, and it stands here with its reason.

use std::time::Duration;

/// Longest wait that a dependency's `Retry-After` can impose. A server that asks for more is
/// treated as asking for this; the caller's deadline ends most waits far earlier.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Least time that must be left for an attempt to be worth starting. With this or less, the caller
/// hangs up as the dependency begins to work.
pub const ATTEMPT_MIN_USABLE: Duration = Duration::from_millis(10);

/// What a caller is told to wait when a half-open circuit has no probe place left: the verdict is
/// about to fall.
pub const HALF_OPEN_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Most trial calls of a half-open circuit. More than this is traffic, not a trial.
pub const PROBES_MAX: u32 = 1_000;

/// Most attempts that a policy may ask for. More than this is a loop, not a policy.
pub const ATTEMPTS_MAX: u32 = 100;

/// Most calls in flight that a bulkhead may allow. More is no limit.
pub const BULKHEAD_LIMIT_MAX: u32 = 100_000;

/// Share of a bulkhead's queue, in percent, above which adaptive LIFO serves the newest first. Half
/// full, a queue no longer smooths a burst: it grows, and whoever joins at its end waits for all.
pub const BULKHEAD_PRESSURE_PERCENT: u32 = 50;

/// How often the delay of a hedge is derived anew from the latencies. Each time every bucket is
/// looked at, which a call in between need not do, and a quantile of a minute changes slowly.
pub const HEDGE_DELAY_EVERY: Duration = Duration::from_secs(1);

/// Least quantile of the latencies after which a hedge may be sent. Below the median more attempts
/// would be hedged than not.
pub const HEDGE_QUANTILE_MIN: f64 = 0.5;

/// Attempts that must lie beyond a quantile before it is believed. With fewer, one slow answer more
/// or less moves it.
pub const QUANTILE_TAIL_MIN: f64 = 10.0;

/// Most callers that may queue for one bulkhead. A longer queue only moves the wait into memory.
pub const BULKHEAD_QUEUE_MAX: u32 = 10_000;

/// Longest time for which a bulkhead that nobody waits for believes in its service time. A second is
/// long for a queue and short for a person who looks at the dependency's recovery.
pub const BULKHEAD_ESTIMATE_AGE_MAX: Duration = Duration::from_secs(1);

/// Most breakers (one a host, say) that a keyed one keeps: 10 MB, and 30 MB with time windows; a window
/// of calls adds two bytes a call to each. Closed ones that know of no bad call are forgotten first, open
/// ones last.
pub const BREAKER_KEYS_MAX: usize = 10_000;

/// Most bulkheads (one a tenant, say) that a keyed one keeps. Those that nobody is in are forgotten.
pub const BULKHEAD_KEYS_MAX: usize = 10_000;

/// Longest wait in a bulkhead's queue for a call that has no deadline of its own.
pub const BULKHEAD_WAIT_MAX: Duration = Duration::from_secs(30);

/// Least length of a window of an adaptive limit: what Envoy's adaptive concurrency takes too. Shorter
/// ones hear noise.
pub const ADAPTIVE_WINDOW_MIN: Duration = Duration::from_millis(100);

/// Least calls in a window of an adaptive limit. The mean of fewer is an anecdote.
pub const ADAPTIVE_SAMPLES_MIN: u32 = 10;

/// Least calls of a window that measures the base latency of an adaptive limit (Envoy takes 50): it is
/// believed for long, so it should be right.
pub const ADAPTIVE_PROBE_SAMPLES_MIN: u32 = 100;

/// Longest time for which an adaptive limit believes in a base latency that nothing confirms. BBR takes
/// 10 s; a probe of ours halves the traffic for a window, so it comes less often.
pub const ADAPTIVE_BASE_AGE_MAX: Duration = Duration::from_secs(30);

/// Most calls that a count window remembers (two bytes a call: 128 KiB).
pub const WINDOW_CALLS_MAX: u32 = 65_536;

/// Most keys that any map by key keeps. A million hosts or clients in one process is a mistake of the
/// configuration, and its table alone takes 50 MB.
pub const KEYED_KEYS_MAX: usize = 1 << 20;

/// Most buckets (one a client, say) that a keyed rate limit keeps. Full ones are forgotten first.
pub const RATE_LIMIT_KEYS_MAX: usize = 10_000;

/// Longest latency that may be injected on purpose. No caller waits longer than this, so more would
/// only hold the memory of a call that nobody waits for.
pub const FAULT_LATENCY_MAX: Duration = Duration::from_secs(60);

/// Longest that a stale value may be served, whatever a dependency's headers say. After a week nobody
/// has noticed that the dependency is gone, and the value describes another world.
pub const STALE_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Most values that a cache keeps for the time when its dependency fails.
pub const CACHE_ENTRIES_MAX: u64 = 1_000_000;

/// How long a cache's refresh in the background may take. Nobody waits for it, so only this ends one
/// that hangs.
pub const CACHE_REFRESH_MAX: Duration = Duration::from_secs(30);

/// Most bytes of an HTTP body that is read into memory, in either direction.
pub const BODY_BYTES_MAX: usize = 1_048_576;

/// Most bytes of an idempotency key, bare or quoted.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// How long a whole shutdown may take before the process ends anyway.
pub const SHUTDOWN_MAX: Duration = Duration::from_secs(30);

/// Most rows that one cycle of a relay, watchdog or reconciliation takes at a time.
pub const BATCH_MAX: u32 = 100;

/// Most rows that housekeeping deletes in one statement: some ten milliseconds of locks.
pub const FORGET_MAX: u32 = 1_000;

/// Most outbox rows that one relay has at the broker. RabbitMQ's confirms come in groups, and more
/// than this no longer makes them come faster.
pub const RELAY_FLIGHTS_MAX: u32 = 1_000;

/// Most stripes that the counters of one dependency have (256 bytes each). More threads than this
/// share some, which costs them time and no count.
pub const COUNTER_STRIPES_MAX: usize = 8;

/// Most attempts that may be sent beside one. Each multiplies the load of a slow dependency; one gets
/// nearly all there is to gain (Dean and Barroso 2013).
pub const HEDGES_MAX: u32 = 3;

/// Over which time latencies are observed for hedges, unless the plan says so: long enough for a 99th
/// percentile at a few calls a second, short enough to notice a slow replica.
pub const LATENCY_WINDOW: Duration = Duration::from_secs(60);

/// Most attempts of one dependency that go on without a caller. More than this is a leak.
pub const DETACHED_MAX: u32 = 1_000;
