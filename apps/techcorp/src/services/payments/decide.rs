//! What payments do next, as pure functions: no PSP, no database, no clock.

use super::rows::State;

/// What the PSP knows about a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AtPsp {
    /// It has charged.
    Charged {
        /// The PSP's name for the charge.
        charge_id: String,
    },
    /// It declined, for good.
    Declined,
    /// It was told to charge this key never more.
    Voided,
    /// It has never heard of it.
    Unheard,
}

/// What to do with a `stock.reserved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// First time, in time: charge.
    Charge,
    /// An earlier attempt started and nobody knows how it ended: ask the PSP by key before
    /// anything else.
    AskFirst,
    /// First time, and the reservation has run out: reject without a call.
    Reject,
    /// The order is cancelled or settled: nothing to do.
    Nothing,
}

/// What to do after the PSP was asked about an earlier attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resumed {
    /// It was done: take its answer.
    Take(AtPsp),
    /// It was not done: charge now, with the same key.
    Charge,
    /// It was not done, and now it is too late: see that it never lands, then reject.
    VoidAndReject,
}

/// What follows from the row and the reservation's expiry. `new` when this delivery wrote the row.
#[must_use]
pub fn next(state: State, new: bool, in_time: bool) -> Next {
    match state {
        State::Started if !new => Next::AskFirst,
        State::Started if in_time => Next::Charge,
        State::Started => Next::Reject,
        State::Charged | State::Declined | State::RefundDue | State::Refunded | State::Void => {
            Next::Nothing
        }
    }
}

/// What follows from the PSP's memory of an earlier attempt.
#[must_use]
pub fn resume(known: AtPsp, in_time: bool) -> Resumed {
    match known {
        AtPsp::Charged { .. } | AtPsp::Declined | AtPsp::Voided => Resumed::Take(known),
        AtPsp::Unheard if in_time => Resumed::Charge,
        AtPsp::Unheard => Resumed::VoidAndReject,
    }
}

/// What an `order.cancelled` makes of a row, if anything.
///
/// A started charge may land at any moment, so it is treated as one that has: the refund asks the
/// PSP to give back or, where nothing was charged, to refuse the key from then on.
#[must_use]
pub fn cancel(state: Option<State>) -> Option<State> {
    match state {
        None => Some(State::Void),
        Some(State::Started | State::Charged) => Some(State::RefundDue),
        Some(State::Declined | State::RefundDue | State::Refunded | State::Void) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_row_is_never_charged_again_without_asking() {
        for in_time in [true, false] {
            assert_eq!(next(State::Started, false, in_time), Next::AskFirst);
        }
        assert_eq!(next(State::Started, true, true), Next::Charge);
        assert_eq!(next(State::Started, true, false), Next::Reject);
        for settled in
            [State::Charged, State::Declined, State::RefundDue, State::Refunded, State::Void]
        {
            assert_eq!(next(settled, false, true), Next::Nothing, "{settled:?}");
        }
    }

    #[test]
    fn what_the_psp_has_done_is_taken_and_what_is_too_late_is_voided() {
        let charged = AtPsp::Charged { charge_id: "ch-1".into() };
        assert_eq!(resume(charged.clone(), false), Resumed::Take(charged));
        assert_eq!(resume(AtPsp::Declined, true), Resumed::Take(AtPsp::Declined));
        assert_eq!(resume(AtPsp::Unheard, true), Resumed::Charge);
        assert_eq!(resume(AtPsp::Unheard, false), Resumed::VoidAndReject);
    }

    #[test]
    fn lesson_g04_a_cancellation_before_the_charge_leaves_a_tombstone() {
        assert_eq!(cancel(None), Some(State::Void));
        assert_eq!(cancel(Some(State::Started)), Some(State::RefundDue));
        assert_eq!(cancel(Some(State::Charged)), Some(State::RefundDue));
        for settled in [State::Declined, State::RefundDue, State::Refunded, State::Void] {
            assert_eq!(cancel(Some(settled)), None, "{settled:?}");
        }
    }
}
