//! `mamparo dlq`: the on-call's commonest task.

mod act;
mod args;
mod edit;
mod export;
mod open;
mod view;

use crate::output::{Exit, failure, say};
use act::Deed;
use open::{Opened, Trouble};

pub(crate) use args::Verb;

pub(crate) async fn run(verb: Verb) -> Exit {
    let done = match verb {
        Verb::List(which) => look(&which, |opened| view::list(&which, opened)).await,
        Verb::Show(which) => {
            let opened = open::dead(&which).await;
            match opened {
                Ok(opened) => Ok(view::show(&which, opened).await),
                Err(trouble) => Err(trouble),
            }
        }
        Verb::Groups(which) => look(&which, |opened| view::groups(&which, opened)).await,
        Verb::Export { which, output } => {
            look(&which, |opened| export::export(opened, output.as_deref())).await
        }
        Verb::Replay { which, consent, signing, pace } => {
            act::run(Deed::Replay, &which, &consent, &signing, pace).await
        }
        Verb::Discard { which, consent, signing } => {
            act::run(Deed::Discard, &which, &consent, &signing, args::PaceArgs::default()).await
        }
        Verb::Undo { which, consent, signing } => {
            act::run(Deed::Undo, &which, &consent, &signing, args::PaceArgs::default()).await
        }
        Verb::Edit { which, changes, consent, signing, pace } => {
            match edit::read(&changes, &which) {
                Ok(deed) => act::run(deed, &which, &consent, &signing, pace).await,
                Err(trouble) => Err(trouble),
            }
        }
    };
    done.unwrap_or_else(|trouble| {
        match &trouble {
            Trouble::Input(words) => say(&format!("error: failed to {words}")),
            Trouble::Messaging(error) => say(&failure(error.as_ref())),
            Trouble::Store(error) => say(&failure(error.as_ref())),
        }
        if let Some(hint) = trouble.hint() {
            say(&format!("hint: {hint}"));
        }
        Exit::Unusable
    })
}

/// Opens, shows, and lets go.
async fn look(which: &args::Which, show: impl FnOnce(&Opened) -> Exit) -> Result<Exit, Trouble> {
    let opened = open::dead(which).await?;
    let exit = show(&opened);
    opened.close().await?;
    Ok(exit)
}
