//! A dependency in virtual time: so many calls at once, the rest in its queue, first come first served.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use mamparo_core::call::adaptive::{AdaptiveConfig, AdaptiveLimit, Sample};
use mamparo_core::call::bulkhead::{Bulkhead, BulkheadConfig, Entry, Slot};
use mamparo_core::rng::{Rng, SeededRng};
use mamparo_core::time::Moment;

/// How the dependency behaves; may change between two runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Server {
    /// Calls that it works on at a time.
    pub(crate) capacity: u32,
    /// What one takes, in the mean.
    pub(crate) service: Duration,
    /// Are service times exponentially distributed? Else they are between half and one and a half.
    pub(crate) varies: bool,
    /// It refuses calls that would wait longer than this before it begins.
    pub(crate) refuses_after: Duration,
    /// The caller waits this long. What is given up is worked off nevertheless.
    pub(crate) timeout: Duration,
}

/// What came of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Report {
    /// Calls that were answered in time.
    pub(crate) good: u32,
    /// The same as a share of what the server could have done.
    pub(crate) goodput: f64,
    /// Calls that were refused by the server or given up.
    pub(crate) dropped: u32,
    /// Least and most of the limit.
    pub(crate) limits: (u32, u32),
}

/// Callers, their bulkhead, and the server.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) bulkhead: Bulkhead,
    pub(crate) adaptive: Option<AdaptiveLimit>,
    rng: SeededRng,
    now: Moment,
    /// When each worker is free.
    workers: BinaryHeap<Reverse<Moment>>,
    /// Calls in flight by their end and a number.
    calls: BinaryHeap<Reverse<(Moment, u64)>>,
    open: std::collections::BTreeMap<u64, Call>,
    number: u64,
}

struct Call {
    slot: Slot,
    began: Moment,
    in_flight: u32,
    dropped: bool,
}

impl World {
    pub(crate) fn new(server: Server, limit: Result<AdaptiveConfig, u32>, seed: u64) -> Self {
        let adaptive = limit.ok().map(AdaptiveLimit::new);
        let limit = adaptive.as_ref().map_or_else(|| limit.err().unwrap_or(1), |a| a.limit());
        Self {
            server,
            bulkhead: Bulkhead::new(BulkheadConfig::new(limit, 0)),
            adaptive,
            rng: SeededRng::new(seed),
            now: Moment::ORIGIN,
            workers: BinaryHeap::new(),
            calls: BinaryHeap::new(),
            open: std::collections::BTreeMap::new(),
            number: 0,
        }
    }

    /// Lets callers come for `time`, at `load` times what the server can do.
    pub(crate) fn run(&mut self, time: Duration, load: f64) -> Report {
        let end = self.now.plus(time);
        let per_second = f64::from(self.server.capacity) / self.server.service.as_secs_f64();
        let mut report = Report { limits: (u32::MAX, 0), ..Report::default() };
        let mut arrival = self.now;
        while arrival < end {
            let gap = exponential(&mut self.rng) / (load * per_second);
            arrival = arrival.plus(Duration::from_secs_f64(gap));
            self.finish_until(arrival, &mut report);
            self.now = arrival;
            self.arrive();
        }
        report.goodput = f64::from(report.good) / (per_second * time.as_secs_f64());
        report
    }

    fn arrive(&mut self) {
        let Entry::Granted(slot) = self.bulkhead.ask(self.now, self.now) else { return };
        while self.workers.len() < self.server.capacity as usize {
            self.workers.push(Reverse(self.now));
        }
        let free = self.workers.peek().map_or(self.now, |worker| worker.0).max(self.now);
        let refused = self.now.until(free) > self.server.refuses_after;
        let end = if refused {
            self.now.plus(Duration::from_millis(1))
        } else {
            let share = if self.server.varies {
                exponential(&mut self.rng)
            } else {
                0.5 + unit(&mut self.rng)
            };
            let end = free.plus(self.server.service.mul_f64(share));
            // Fewer workers than before: those that are free first close down.
            while self.workers.len() >= self.server.capacity as usize {
                self.workers.pop();
            }
            self.workers.push(Reverse(end));
            end
        };
        let given_up = self.now.plus(self.server.timeout);
        let dropped = refused || end > given_up;
        let in_flight = self.bulkhead.in_flight();
        self.number += 1;
        self.calls.push(Reverse((end.min(given_up), self.number)));
        self.open.insert(self.number, Call { slot, began: self.now, in_flight, dropped });
    }

    fn finish_until(&mut self, until: Moment, report: &mut Report) {
        while self.calls.peek().is_some_and(|Reverse((end, _))| *end <= until) {
            let Some(Reverse((end, number))) = self.calls.pop() else { return };
            let Some(call) = self.open.remove(&number) else { return };
            self.bulkhead.release(end, call.slot);
            if call.dropped {
                report.dropped += 1;
            } else {
                report.good += 1;
            }
            let limit = self.bulkhead.limit();
            report.limits = (report.limits.0.min(limit), report.limits.1.max(limit));
            let took = end.since(call.began);
            let sample = Sample { took, in_flight: call.in_flight, dropped: call.dropped };
            if let Some(change) = self.adaptive.as_ref().and_then(|a| a.tell(end, sample)) {
                let woken = self.bulkhead.set_limit(end, change.to);
                assert_eq!(woken.into_iter().count(), 0, "nobody queues here");
            }
        }
    }
}

/// A draw from the exponential distribution of mean 1.
fn exponential(rng: &mut SeededRng) -> f64 {
    -unit(rng).ln()
}

/// A draw from 0.0 to 1.0, without 0.0.
fn unit(rng: &mut SeededRng) -> f64 {
    (rng.up_to(u64::MAX - 1) as f64 + 1.0) / u64::MAX as f64
}
