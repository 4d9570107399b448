//! The live view: what the on-call would want to see, twice a second.

use std::fmt::Write as _;
use std::time::Duration;

use super::books::ByState;
use super::metrics::Breakers;

/// One look at the shop.
#[derive(Debug, Clone, Default)]
pub struct Look {
    /// Time since the traffic began.
    pub at: Duration,
    /// Length of the traffic.
    pub length: Duration,
    /// What is going on: `calm`, `fault`, `recovery`, `drain`.
    pub phase: &'static str,
    /// Orders by state.
    pub orders: ByState,
    /// Breakers that are there.
    pub breakers: Breakers,
    /// Queues that hold something; `None` while the broker does not tell.
    pub depths: Option<Vec<(String, u64)>>,
    /// Requests answered in the last seconds.
    pub requests: usize,
    /// Of those, refusals with 503.
    pub refused: usize,
    /// Half of the last seconds' requests took less.
    pub p50: Duration,
    /// Nearly all of the last seconds' requests took less.
    pub p99: Duration,
}

impl Look {
    /// One line, for logs and pipes.
    #[must_use]
    pub fn line(&self) -> String {
        let ByState { pending, reserved, confirmed, cancelled } = self.orders;
        let mut line = format!(
            "{:>5.1}s {:<8} orders: {pending} pending, {reserved} reserved, {confirmed} confirmed, \
             {cancelled} cancelled | {} req, {} refused, p50 {} p99 {}",
            self.at.as_secs_f64(),
            self.phase,
            self.requests,
            self.refused,
            millis(self.p50),
            millis(self.p99),
        );
        let open: Vec<String> = self
            .breakers
            .iter()
            .filter(|(_, state)| **state > 0)
            .map(|((from, to), state)| format!("{from}→{to} {}", state_name(*state)))
            .collect();
        if !open.is_empty() {
            let _ = write!(line, " | {}", open.join(", "));
        }
        let queues = self.queues();
        if !queues.is_empty() {
            let _ = write!(line, " | {}", queues.join(", "));
        }
        line
    }

    /// A panel for a terminal, `width` columns wide.
    #[must_use]
    pub fn panel(&self, title: &str, width: usize) -> Vec<String> {
        let width = width.clamp(40, 100);
        let share = self.at.as_secs_f64() / self.length.as_secs_f64().max(0.001);
        let bar = width.saturating_sub(30);
        let done = ((share.min(1.0) * bar as f64) as usize).min(bar);
        let title: String = title.chars().take(width).collect();
        let mut lines = vec![
            format!("\x1b[1m{title}\x1b[0m"),
            format!(
                "{}{} {:>5.1} s  {}",
                "█".repeat(done),
                "░".repeat(bar - done),
                self.at.as_secs_f64(),
                phase_name(self.phase)
            ),
            String::new(),
        ];
        let ByState { pending, reserved, confirmed, cancelled } = self.orders;
        let most = pending.max(reserved).max(confirmed).max(cancelled).max(1);
        let counts = [
            ("pending", pending),
            ("reserved", reserved),
            ("confirmed", confirmed),
            ("cancelled", cancelled),
        ];
        for (name, count) in counts {
            let room = width.saturating_sub(24) as u64;
            let length = usize::try_from(count * room / most).unwrap_or_default();
            lines.push(format!("  {name:<10} {count:>6}  {}", "▇".repeat(length)));
        }
        lines.push(String::new());
        lines.push(format!(
            "  requests {:>4} / 3 s   refused {:>4}   p50 {:>8}   p99 {:>8}",
            self.requests,
            self.refused,
            millis(self.p50),
            millis(self.p99)
        ));
        let circuits: Vec<String> = self
            .breakers
            .iter()
            .map(|((from, to), state)| {
                let (color, name) =
                    (["32", "33", "31"][usize::from(*state).min(2)], state_name(*state));
                format!("{from}→{to} \x1b[{color}m{name}\x1b[0m")
            })
            .collect();
        lines.push("  circuits".to_owned());
        lines.extend(circuits.chunks(3).map(|row| format!("    {}", row.join("   "))));
        let queues = self.queues();
        let queues = if queues.is_empty() { "empty".to_owned() } else { queues.join("   ") };
        lines.push(format!("  queues    {queues}"));
        lines
    }

    fn queues(&self) -> Vec<String> {
        let Some(depths) = &self.depths else { return vec!["broker away".to_owned()] };
        depths.iter().map(|(queue, depth)| format!("{queue} {depth}")).collect()
    }
}

fn state_name(state: u8) -> &'static str {
    match state {
        0 => "closed",
        1 => "half-open",
        _ => "OPEN",
    }
}

fn phase_name(phase: &str) -> String {
    if phase == "fault" { format!("\x1b[31m{phase}\x1b[0m") } else { phase.to_owned() }
}

/// A duration as people read it: `0.8 ms`, `12 ms`, `2.0 s`.
#[must_use]
pub fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1_000.0;
    if millis < 10.0 {
        format!("{millis:.1} ms")
    } else if millis < 1_000.0 {
        format!("{millis:.0} ms")
    } else {
        format!("{:.1} s", millis / 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look() -> Look {
        Look {
            at: Duration::from_millis(12_340),
            length: Duration::from_secs(30),
            phase: "fault",
            orders: ByState { pending: 1, reserved: 2, confirmed: 120, cancelled: 3 },
            breakers: [
                (("orders".to_owned(), "catalog".to_owned()), 2),
                (("bff".to_owned(), "catalog".to_owned()), 0),
            ]
            .into(),
            depths: Some(vec![("orders.saga".to_owned(), 4)]),
            requests: 88,
            refused: 40,
            p50: Duration::from_micros(2_300),
            p99: Duration::from_millis(740),
        }
    }

    #[test]
    fn a_line_says_what_stands_out() {
        let line = look().line();
        assert!(line.contains("orders→catalog OPEN"), "{line}");
        assert!(!line.contains("bff→catalog"), "a closed circuit is no news: {line}");
        assert!(line.contains("p50 2.3 ms p99 740 ms"), "{line}");
        assert!(line.contains("orders.saga 4"), "{line}");
        let away = Look { depths: None, ..look() }.line();
        assert!(away.ends_with("| broker away"), "{away}");
    }

    #[test]
    fn a_panel_keeps_its_width() {
        let visible = |line: &str| {
            let mut plain = String::new();
            let mut escape = false;
            for c in line.chars() {
                match (escape, c) {
                    (false, '\x1b') => escape = true,
                    (true, 'm') => escape = false,
                    (true, _) => {}
                    (false, c) => plain.push(c),
                }
            }
            plain.chars().count()
        };
        for line in look().panel(&"TechCorp ".repeat(20), 80) {
            assert!(visible(&line) <= 80, "{line}");
        }
    }
}
