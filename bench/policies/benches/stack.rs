//! A handful of rows under criterion, for whoever trusts its statistics more than our own rounds, and
//! for comparing two commits (`--save-baseline`). The interleaved run of `cargo xtask bench policies` is
//! what the documentation quotes.

use criterion::{Criterion, criterion_group, criterion_main};
use policies::cases;

const ROWS: &[&str] = &[
    "base.bare",
    "tower.stack",
    "tr.stack",
    "recloser.breaker",
    "governor.direct",
    "mamparo.breaker.failures",
    "mamparo.open",
    "mamparo.bulkhead",
    "mamparo.rate_limit",
    "mamparo.stack.combinators",
    "mamparo.stack.layers",
    "mamparo.stack.dependency",
];

fn stacks(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime of one thread needs no more than this process");
    for case in cases::all().iter().filter(|case| ROWS.contains(&case.name)) {
        runtime.block_on(case.check()).expect("the row says what it is about");
        criterion.bench_function(case.name, |bencher| {
            bencher.iter_custom(|calls| {
                runtime.block_on(async {
                    let start = policies::clock::now();
                    case.run(calls).await;
                    start.elapsed()
                })
            });
        });
    }
}

criterion_group!(benches, stacks);
criterion_main!(benches);
