//! Runs policies through the interleavings of their threads. See `cargo xtask model`.

use loom::model::Builder;
use loom::thread;
use mamparo_core::sync::Arc;

/// Most preemptions of one run. Faults of lock-free code that need more than two are rare
/// (Musuvathi and Qadeer 2007), and each further one multiplies the runs.
const PREEMPTIONS: usize = 2;

/// Runs `scene` in every interleaving that the bound allows.
pub(crate) fn check(scene: impl Fn() + Send + Sync + 'static) {
    check_within(PREEMPTIONS, scene);
}

/// The same with another bound, for scenes that are small enough for more or too large for two.
pub(crate) fn check_within(preemptions: usize, scene: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(scene);
}

/// What one thread does with the thing that is shared.
pub(crate) type Part<S, T> = Box<dyn FnOnce(&S) -> T + Send>;

/// Runs each of `parts` on `shared` in a thread of its own, the last one in the present thread, and
/// answers with what they returned.
pub(crate) fn together<S, T>(shared: &Arc<S>, parts: Vec<Part<S, T>>) -> Vec<T>
where
    S: Send + Sync + 'static,
    T: Send + 'static,
{
    let mut parts = parts;
    let last = parts.pop();
    let threads: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let shared = Arc::clone(shared);
            thread::spawn(move || part(&shared))
        })
        .collect();
    let own = last.map(|part| part(shared));
    let others = threads.into_iter().map(|thread| thread.join().expect("a part panicked"));
    others.chain(own).collect()
}
