//! `[[routes]]`

use super::{method_and_path, rate_limit};
use crate::reader::{Section, nearest_hint};
use crate::{CallRef, IdempotencyKey, Located, RouteSection};

pub(super) fn read(mut section: Section<'_, '_>) -> Option<RouteSection> {
    let route = section.require::<String>("path");
    let parts = route.and_then(|route| match method_and_path(&route) {
        Ok((method, path)) => {
            let (method, path) = (method.to_owned(), path.to_owned());
            Some((Located::at(route.line, method), Located::at(route.line, path)))
        }
        Err(message) => {
            let hint = "for example \"POST /v1/orders\"".to_owned();
            section.complain("path", &message, Some(hint));
            None
        }
    });
    let calls = calls(&mut section);
    let idempotency_key = idempotency_key(&mut section);
    let rate_limit = section.table("rate_limit").and_then(rate_limit);
    section.finish();
    let (method, path) = parts?;
    Some(RouteSection { method, path, calls, idempotency_key, rate_limit })
}

/// `[["a GET /x", "b GET /y"], ["c POST /z"]]`: groups in turn, each group in parallel.
fn calls(section: &mut Section<'_, '_>) -> Vec<Vec<CallRef>> {
    let Some(raw) = section.raw("calls") else { return Vec::new() };
    let path = section.path_of("calls");
    let mut groups = Vec::new();
    for group in section.elements(&path, raw) {
        if group.get_ref().is_str() {
            let message = "a call stands outside of a group";
            let hint = "write [[\"a\", \"b\"]]: the calls of an inner list run in parallel";
            section.sink.report(group.span().start, &path, message, Some(hint.to_owned()));
            continue;
        }
        let mut calls = Vec::new();
        for raw in section.elements(&path, group) {
            let Some(text) = section.typed::<String>(&path, raw) else { continue };
            match call(&text) {
                Ok(call) => calls.push(call),
                Err(message) => {
                    let hint = "for example \"catalog GET /v1/products\"".to_owned();
                    section.sink.report(raw.span().start, &path, &message, Some(hint));
                }
            }
        }
        groups.push(calls);
    }
    groups
}

fn call(text: &Located<String>) -> Result<CallRef, String> {
    let Some((dependency, rest)) = text.split_once(' ') else {
        return Err(format!("{:?} is not of the form \"dependency METHOD /path\"", text.value));
    };
    let (method, path) = method_and_path(rest)?;
    Ok(CallRef {
        dependency: Located::at(text.line, dependency.to_owned()),
        method: method.to_owned(),
        path: path.to_owned(),
    })
}

fn idempotency_key(section: &mut Section<'_, '_>) -> Option<Located<IdempotencyKey>> {
    let word = section.get::<String>("idempotency_key")?;
    match word.as_str() {
        "required" => Some(Located::at(word.line, IdempotencyKey::Required)),
        "optional" => Some(Located::at(word.line, IdempotencyKey::Optional)),
        other => {
            let hint = nearest_hint(other, &["required", "optional"]);
            section.complain("idempotency_key", &format!("{other:?} is no choice"), hint);
            None
        }
    }
}
