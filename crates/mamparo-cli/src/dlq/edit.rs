//! What an edited copy is to say.

use std::io::Read as _;
use std::path::Path;

use super::act::Deed;
use super::args::{Changes, Which};
use super::open::Trouble;

/// Most bytes of a body. Brokers take more; nobody edits more by hand.
const BODY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Reads the changes. An edit is of one message, which is named.
pub(super) fn read(changes: &Changes, which: &Which) -> Result<Deed, Trouble> {
    if which.ids.len() != 1 {
        return Err(Trouble::Input("edit: give --id for the one message that is meant".to_owned()));
    }
    if changes.body.is_none() && changes.headers.is_empty() {
        let words = "edit: give --body FILE or --set-header NAME=VALUE, else use replay";
        return Err(Trouble::Input(words.to_owned()));
    }
    let body = changes.body.as_deref().map(bytes).transpose()?;
    Ok(Deed::Edit { body, headers: changes.headers.clone() })
}

fn bytes(path: &Path) -> Result<Vec<u8>, Trouble> {
    let mut body = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().lock().take(BODY_BYTES_MAX + 1).read_to_end(&mut body)
    } else {
        std::fs::File::open(path)
            .and_then(|file| file.take(BODY_BYTES_MAX + 1).read_to_end(&mut body))
    };
    let refused = |why: &dyn std::fmt::Display| {
        Trouble::Input(format!("read the body {}: {why}", path.display()))
    };
    match read {
        Err(error) => Err(refused(&error)),
        Ok(_) if u64::try_from(body.len()).unwrap_or(u64::MAX) > BODY_BYTES_MAX => {
            Err(refused(&"it has over 16 MiB"))
        }
        Ok(_) => Ok(body),
    }
}
