//! How much a request matters, as it travels from service to service.

/// How much a request matters. The greater one matters more.
///
/// The four upper levels are those of *Site Reliability Engineering*, "Handling Overload" (Beyer and
/// others, 2016); the lowest is for work that nobody waits for. On the wire a level is its
/// [`slug`](Criticality::slug).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Criticality {
    /// Nobody waits for it: prefetching, backfills, copies of traffic. It goes first.
    BestEffort,
    /// Somebody waits, and can live with a refusal now and then, or for a while.
    Sheddable,
    /// Refusals of a part are expected under load; batch work that tries again.
    SheddablePlus,
    /// A user sees it when it fails. What a request is that does not say.
    #[default]
    Critical,
    /// The business stops without it. Few requests, and capacity is set aside for all of them.
    CriticalPlus,
}

impl Criticality {
    /// All levels, the least important first.
    pub const ALL: [Self; 5] = [
        Self::BestEffort,
        Self::Sheddable,
        Self::SheddablePlus,
        Self::Critical,
        Self::CriticalPlus,
    ];

    /// Its place in [`Criticality::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name on the wire and in metrics.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::BestEffort => "best-effort",
            Self::Sheddable => "sheddable",
            Self::SheddablePlus => "sheddable-plus",
            Self::Critical => "critical",
            Self::CriticalPlus => "critical-plus",
        }
    }

    /// The level of a name, in any case; `_` stands for `-`. `None` for what is no level.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let same = |level: &Self| {
            let slug = level.slug().bytes();
            let plain = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
            slug.eq(text.bytes().map(plain))
        };
        Self::ALL.into_iter().find(same)
    }

    /// What a request is worth that says `stated`, from a caller that may claim no more than `most`.
    ///
    /// Who says nothing, or something unknown, gets the default ([`Criticality::Critical`]) or `most`,
    /// whichever is less. Nobody is raised.
    #[must_use]
    pub fn admitted(stated: Option<&str>, most: Self) -> Self {
        stated.and_then(Self::parse).unwrap_or_default().min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_its_slug_and_back() {
        for (index, level) in Criticality::ALL.into_iter().enumerate() {
            assert_eq!(level.index(), index);
            assert_eq!(Criticality::parse(level.slug()), Some(level));
        }
        assert!(Criticality::ALL.is_sorted());
        assert_eq!(Criticality::parse("CRITICAL_PLUS"), Some(Criticality::CriticalPlus));
        for text in ["", "critical ", "criticalplus", "5", "critical-plus-plus", "crític"] {
            assert_eq!(Criticality::parse(text), None, "{text}");
        }
    }

    #[test]
    fn nobody_is_raised() {
        use Criticality::{BestEffort, Critical, CriticalPlus, Sheddable};
        for (stated, most, admitted) in [
            (None, CriticalPlus, Critical),
            (None, Sheddable, Sheddable),
            (Some("urgent!"), CriticalPlus, Critical),
            (Some("critical-plus"), CriticalPlus, CriticalPlus),
            (Some("critical-plus"), Critical, Critical),
            (Some("best-effort"), Critical, BestEffort),
        ] {
            assert_eq!(Criticality::admitted(stated, most), admitted, "{stated:?} {most:?}");
        }
    }
}
