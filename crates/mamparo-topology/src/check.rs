//! What only shows across sections: names that lead nowhere, and times that don't fit.

use std::time::Duration;

use mamparo_core::call::arithmetic;
use mamparo_core::call::fault::FaultConfig;
use mamparo_core::limits::ATTEMPT_MIN_USABLE;
use toml::de::DeTable;

use crate::reader::{Sink, nearest_hint, offset_of, quoted};
use crate::{DependencySection, PolicyFile, Problem, RouteSection, SagaSection, show_duration};

/// Checks the whole file, of which `root` is the text.
pub(crate) fn policy(policy: &PolicyFile, root: &DeTable<'_>, sink: &Sink<'_>) {
    let mut problems = Vec::new();
    names(policy, &mut problems);
    plans(policy, root, sink);
    queues(policy, &mut problems);
    budgets(policy, &mut problems);
    for saga in &policy.sagas {
        deadlines(policy, saga, &mut problems);
    }
    problems.into_iter().for_each(|problem| sink.push(problem));
}

/// Every call of a route leads to a dependency, and no route stands twice.
fn names(policy: &PolicyFile, problems: &mut Vec<Problem>) {
    let known: Vec<&str> = policy.dependencies.iter().map(|d| d.name.as_str()).collect();
    for (index, route) in policy.routes.iter().enumerate() {
        for call in route.calls.iter().flatten() {
            if !known.contains(&call.dependency.as_str()) {
                let message = format!("no dependency is called {:?}", call.dependency.value);
                let key = format!("routes[{index}].calls");
                let mut problem = Problem::of_key(&policy.file, call.dependency.line, key, message);
                problem.hint = nearest_hint(&call.dependency, &known);
                problems.push(problem);
            }
        }
        let same = |other: &&RouteSection| {
            (&*other.method, &*other.path) == (&*route.method, &*route.path)
        };
        if let Some(first) = policy.routes[..index].iter().find(same) {
            let message = format!("the same route stands on line {}", first.path.line);
            let key = format!("routes[{index}].path");
            problems.push(Problem::of_key(&policy.file, route.path.line, key, message));
        }
    }
}

/// Whatever core's machines refuse to be made of is refused here, where it has a line.
fn plans(policy: &PolicyFile, root: &DeTable<'_>, sink: &Sink<'_>) {
    for dependency in &policy.dependencies {
        let name = dependency.name.as_str();
        let mut mistakes = dependency.plan(&policy.service.name).validate();
        mistakes.extend(dependency.faults.iter().flat_map(FaultConfig::mistakes));
        for mistake in mistakes {
            let path = ["dependencies", name].into_iter().chain(mistake.key.split('.'));
            let key = format!("dependencies.{}.{}", quoted(name), mistake.key);
            sink.report(offset_of(root, path), &key, &mistake.text, None);
        }
    }
}

/// The same for queues.
fn queues(policy: &PolicyFile, problems: &mut Vec<Problem>) {
    for queue in &policy.queues {
        let key = format!("queues.{}", quoted(&queue.name));
        for problem in queue.policy().problems() {
            let message = problem.to_string();
            problems.push(Problem::of_key(&policy.file, queue.name.line, &key, message));
        }
    }
}

/// What a route may wait for fits the service's budget: each call, and the calls in turn.
fn budgets(policy: &PolicyFile, problems: &mut Vec<Problem>) {
    let Some(budget) = policy.service.request_budget else {
        if !policy.routes.is_empty() {
            let line = policy.service.name.line;
            let message = "missing required key: the service has routes, so its callers wait";
            let key = "service.request_budget";
            problems.push(Problem::of_key(&policy.file, line, key, message));
        }
        return;
    };
    let mut fits = Vec::new();
    for dependency in &policy.dependencies {
        let name = dependency.name.as_str();
        let mut calls = policy.routes.iter().flat_map(|route| route.calls.iter().flatten());
        if calls.any(|call| call.dependency.value == name) {
            match too_long(policy, dependency, *budget) {
                Some(problem) => problems.push(problem),
                None => fits.push(dependency),
            }
        }
    }
    for (index, route) in policy.routes.iter().enumerate() {
        problems.extend(in_turn(policy, index, route, &fits, *budget));
    }
}

/// The dependency's worst case against the budget of the route that waits for it.
fn too_long(
    policy: &PolicyFile,
    dependency: &DependencySection,
    budget: Duration,
) -> Option<Problem> {
    let timeout = *dependency.attempt_timeout;
    let key = format!("dependencies.{}", quoted(&dependency.name));
    if timeout >= budget {
        let message = format!(
            "{} is not less than request_budget {}: the caller gives up as the answer comes",
            show_duration(timeout),
            show_duration(budget)
        );
        let line = dependency.attempt_timeout.line;
        let hint = format!("an attempt must end well before {}", show_duration(budget));
        let key = format!("{key}.attempt_timeout");
        return Some(Problem::of_key(&policy.file, line, key, message).with_hint(hint));
    }
    let (retry, longest) = (dependency.retry_config(), dependency.longest_attempt());
    let misfit = arithmetic::fits(retry.attempts, longest, &retry.backoff, budget).err()?;
    let message = format!(
        "{} attempts of {} and waits of up to {} make {}, more than request_budget {}",
        misfit.attempts,
        show_duration(longest),
        show_duration(misfit.waits),
        show_duration(misfit.worst),
        show_duration(budget)
    );
    let line = dependency.retry.as_ref().map_or(0, |retry| retry.attempts.line);
    let line = if line > 0 { line } else { dependency.attempt_timeout.line };
    let hedging = longest.saturating_sub(timeout);
    let hint = match misfit.fitting_timeout().map(|fits| fits.checked_sub(hedging)) {
        Some(Some(fits)) if fits > ATTEMPT_MIN_USABLE => {
            let fits = show_duration(fits);
            format!("make fewer attempts, or an attempt_timeout of at most {fits}")
        }
        Some(_) => "make fewer attempts: no timeout is short enough for so many".to_owned(),
        None => "the waits alone don't fit: make fewer attempts, or lower the cap".to_owned(),
    };
    Some(Problem::of_key(&policy.file, line, format!("{key}.retry"), message).with_hint(hint))
}

/// Groups of calls run one after the other, so their worst cases add up.
fn in_turn(
    policy: &PolicyFile,
    index: usize,
    route: &RouteSection,
    fits: &[&DependencySection],
    budget: Duration,
) -> Option<Problem> {
    let worst_of = |name: &str| fits.iter().find(|d| *d.name == name).map(|d| d.worst_case());
    let mut total = Duration::ZERO;
    for group in &route.calls {
        let mut longest = Duration::ZERO;
        for call in group {
            // A call that doesn't fit alone, or leads nowhere, is reported already.
            longest = longest.max(worst_of(&call.dependency)?);
        }
        total = total.saturating_add(longest);
    }
    if total <= budget {
        return None;
    }
    let message = format!(
        "its calls in turn can take {}, more than request_budget {}",
        show_duration(total),
        show_duration(budget)
    );
    let line = route.calls.iter().flatten().next().map_or(route.path.line, |c| c.dependency.line);
    let hint = "call them in parallel (one inner list), or make fewer or shorter attempts";
    let key = format!("routes[{index}].calls");
    Some(Problem::of_key(&policy.file, line, key, message).with_hint(hint))
}

/// The watchdog acts before the reservation falls back by itself, else stock is sold twice.
fn deadlines(policy: &PolicyFile, saga: &SagaSection, problems: &mut Vec<Problem>) {
    let Some(expiry) = saga.reservation_expiry else { return };
    for deadline in &saga.deadlines {
        let latest = deadline.after.saturating_add(*saga.watch_every);
        if latest >= *expiry {
            let message = format!(
                "{} and one watch_every later ({}) is not before reservation_expiry {}",
                show_duration(*deadline.after),
                show_duration(latest),
                show_duration(*expiry)
            );
            let key = format!("sagas.{}.deadlines.{}", quoted(&saga.name), quoted(&deadline.state));
            problems.push(Problem::of_key(&policy.file, deadline.after.line, key, message));
        }
    }
}
