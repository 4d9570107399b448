//! Failed messages as JSON lines, without loss.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use mamparo_messaging::broker::Stored;
use serde::Serialize;

use super::open::Opened;
use crate::output::{Exit, data, say};

/// A line. A body that is UTF-8 is `body`, any other `bodyBase64` (RFC 4648, with padding).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'m> {
    queue: &'m str,
    id: &'m str,
    #[serde(rename = "type")]
    kind: &'m str,
    key: &'m str,
    exchange: &'m str,
    routing_key: &'m str,
    since: String,
    headers: &'m BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    body_base64: Option<String>,
}

/// Writes the chosen messages to a new file, or to stdout.
pub(super) fn export(opened: &Opened, output: Option<&Path>) -> Exit {
    let lines: Result<Vec<String>, _> =
        opened.messages().iter().map(|stored| line(opened.queue(), stored)).collect();
    let text = match lines {
        Ok(lines) => lines.concat(),
        Err(error) => {
            say(&format!("error: failed to write JSON: {error}"));
            return Exit::Findings;
        }
    };
    let written = match output {
        None => data(&text),
        Some(path) => {
            let file = std::fs::File::create_new(path);
            let written = file.and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_all()
            });
            if let Err(error) = &written {
                say(&format!("error: failed to write {}: {error}", path.display()));
            }
            written.is_ok()
        }
    };
    if !written {
        return Exit::Findings;
    }
    let (count, total) = (opened.messages().len(), opened.total());
    say(&format!("exported {count} of {total} {} of {}", opened.noun(), opened.queue()));
    Exit::Clean
}

fn line(queue: &str, stored: &Stored) -> Result<String, serde_json::Error> {
    let message = &stored.message;
    let body = std::str::from_utf8(&message.body).ok();
    let line = Line {
        queue,
        id: &message.id,
        kind: &message.kind,
        key: &message.key,
        exchange: &message.exchange,
        routing_key: &message.routing_key,
        since: stored.since.to_string(),
        headers: &message.headers,
        body,
        body_base64: body.is_none().then(|| base64(&message.body)),
    };
    serde_json::to_string(&line).map(|line| line + "\n")
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let at = |n: usize| u32::from(chunk.get(n).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * place) & 63).unwrap_or(0);
            let filled = place <= chunk.len();
            text.push(if filled { char::from(ALPHABET[index]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
