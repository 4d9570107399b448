//! Where the live view goes: a panel that redraws itself, or plain lines where there is no terminal.

use std::io::{IsTerminal as _, Write as _};

use super::live::Look;
use super::run::Options;
use super::view::Screen;

/// Columns of the live view.
const WIDTH: usize = 80;

/// The live view on stderr: a panel that redraws itself, or a line a second.
#[derive(Debug)]
pub struct Terminal {
    title: String,
    live: bool,
    drawn: usize,
    lines: u64,
}

impl Terminal {
    /// Says what is about to run.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let title = format!("TechCorp · {} · {}", options.scenario.name, options.scenario.about);
        say(&format!(
            "{title}\nseed {} · {:.0} s · {} orders/s · clocks of the demo are shortened (see --json)",
            options.seed,
            options.length.as_secs_f64(),
            options.rate
        ));
        let live = std::io::stderr().is_terminal();
        Self { title, live, drawn: 0, lines: 0 }
    }

    /// Leaves the last panel standing.
    pub fn finish(&mut self) {
        self.drawn = 0;
    }
}

impl Screen for Terminal {
    fn look(&mut self, look: &Look) {
        if !self.live {
            self.lines += 1;
            if self.lines % 2 == 1 {
                say(&look.line());
            }
            return;
        }
        let panel = look.panel(&self.title, WIDTH);
        let up = if self.drawn > 0 { format!("\x1b[{}A\x1b[J", self.drawn) } else { String::new() };
        self.drawn = panel.len() + 1;
        // Without automatic wrapping, a narrow terminal cuts lines instead of breaking the redraw.
        say(&format!("{up}\x1b[?7l{}\n\x1b[?7h", panel.join("\n")));
    }

    fn note(&mut self, text: &str) {
        self.drawn = 0;
        say(&format!("· {text}"));
    }
}

/// Words for people, on stderr. A stderr that is closed leaves nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
