//! Who waits for a slot, in order of arrival.
//!
//! A doubly linked list through a table of places: to join, to be granted from either end, and to leave
//! from the middle all cost the same however long the line is, and a place is used again.

use crate::call::bulkhead::table::{Event, Standing, TABLE};
use crate::time::Moment;

/// A place in the line of a bulkhead. Ends in exactly one claim or leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    place: u32,
    /// Tells this holder from earlier ones of the same place.
    generation: u32,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Waiting { until: Moment, older: Option<u32>, newer: Option<u32> },
    Granted,
    Shed,
    Free { next: Option<u32> },
}

/// Which end of the line is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Oldest,
    Newest,
}

/// The line. As many places as there ever were tickets at a time: at most the queue and, for those
/// who were granted a slot and have not picked it up, the limit.
#[derive(Debug, Default)]
pub(super) struct Line {
    places: Vec<Place>,
    free: Option<u32>,
    oldest: Option<u32>,
    newest: Option<u32>,
    waiting: u32,
}

impl Line {
    /// Callers that wait; granted and shed ones do not.
    pub(super) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Joins as the newest. A slot after `until` is of no use.
    pub(super) fn join(&mut self, until: Moment) -> Ticket {
        let state = State::Waiting { until, older: self.newest, newer: None };
        let ticket = self.take_place(state);
        match self.newest {
            Some(before) => self.link(before, End::Newest, Some(ticket.place)),
            None => self.oldest = Some(ticket.place),
        }
        self.newest = Some(ticket.place);
        self.waiting += 1;
        ticket
    }

    /// Grants a slot to whoever is first at that end and can still use it. Those whose time is over
    /// are passed by, once: their own timers tell them.
    pub(super) fn grant(&mut self, now: Moment, end: End) -> Option<Ticket> {
        loop {
            let (ticket, until) = self.first(end)?;
            if until >= now {
                self.tell(ticket, Event::Grant);
                return Some(ticket);
            }
            self.tell(ticket, Event::Expire);
        }
    }

    /// Makes the oldest give up its place in the line.
    pub(super) fn shed_oldest(&mut self) -> Option<Ticket> {
        let (ticket, _) = self.first(End::Oldest)?;
        self.tell(ticket, Event::Shed);
        Some(ticket)
    }

    /// How does this ticket stand?
    pub(super) fn standing(&self, ticket: Ticket) -> Standing {
        match self.places.get(ticket.place as usize) {
            Some(place) if place.generation == ticket.generation => match place.state {
                State::Waiting { .. } => Standing::Waiting,
                State::Granted => Standing::Granted,
                State::Shed => Standing::Shed,
                State::Free { .. } => Standing::Gone,
            },
            Some(_) | None => Standing::Gone,
        }
    }

    /// Takes what happened to a ticket and answers how it stood before; `None`, and nothing changes,
    /// when the event does not fit.
    pub(super) fn tell(&mut self, ticket: Ticket, event: Event) -> Option<Standing> {
        let before = self.standing(ticket);
        let row = TABLE.row(before, event)?;
        if before == Standing::Waiting {
            self.unlink(ticket.place);
        }
        match row.to {
            Standing::Granted => self.set(ticket.place, State::Granted),
            Standing::Shed => self.set(ticket.place, State::Shed),
            Standing::Gone => self.free(ticket.place),
            // No event leads back into the line.
            Standing::Waiting => {}
        }
        Some(before)
    }

    fn first(&self, end: End) -> Option<(Ticket, Moment)> {
        let index = match end {
            End::Oldest => self.oldest?,
            End::Newest => self.newest?,
        };
        let place = self.places.get(index as usize)?;
        match place.state {
            State::Waiting { until, .. } => {
                Some((Ticket { place: index, generation: place.generation }, until))
            }
            State::Granted | State::Shed | State::Free { .. } => None,
        }
    }

    fn take_place(&mut self, state: State) -> Ticket {
        if let Some(index) = self.free
            && let Some(place) = self.places.get_mut(index as usize)
            && let State::Free { next } = place.state
        {
            self.free = next;
            place.state = state;
            return Ticket { place: index, generation: place.generation };
        }
        // Queue and limit together stay far below 2³².
        let index = self.places.len() as u32;
        self.places.push(Place { generation: 0, state });
        Ticket { place: index, generation: 0 }
    }

    fn free(&mut self, index: u32) {
        let next = self.free.replace(index);
        if let Some(place) = self.places.get_mut(index as usize) {
            place.generation = place.generation.wrapping_add(1);
            place.state = State::Free { next };
        }
    }

    fn set(&mut self, index: u32, state: State) {
        if let Some(place) = self.places.get_mut(index as usize) {
            place.state = state;
        }
    }

    /// Takes a waiting place out of the list; its state is set by the caller.
    fn unlink(&mut self, index: u32) {
        let Some(&Place { state: State::Waiting { older, newer, .. }, .. }) =
            self.places.get(index as usize)
        else {
            return;
        };
        match older {
            Some(older) => self.link(older, End::Newest, newer),
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.link(newer, End::Oldest, older),
            None => self.newest = older,
        }
        self.waiting -= 1;
    }

    /// Sets the neighbour of a waiting place on one side.
    fn link(&mut self, index: u32, side: End, neighbour: Option<u32>) {
        if let Some(Place { state: State::Waiting { older, newer, .. }, .. }) =
            self.places.get_mut(index as usize)
        {
            match side {
                End::Oldest => *older = neighbour,
                End::Newest => *newer = neighbour,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::rng::{Rng, SeededRng};

    const EVER: Moment = Moment::FAR_FUTURE;
    const NOW: Moment = Moment::from_millis(5);

    #[test]
    fn every_row_of_the_table_is_driven() {
        let mut hits = Vec::new();
        let mut line = Line::default();
        let mut tell = |line: &mut Line, ticket, event, to| {
            let from = line.tell(ticket, event);
            hits.extend(from.map(|from| (from, event)));
            assert_eq!(line.standing(ticket), to, "{event:?}");
        };
        let [runs, returns, shed, expired, leaves] = [(); 5].map(|()| line.join(EVER));
        tell(&mut line, runs, Event::Claim, Standing::Waiting);
        tell(&mut line, runs, Event::Grant, Standing::Granted);
        tell(&mut line, runs, Event::Claim, Standing::Gone);
        tell(&mut line, runs, Event::Leave, Standing::Gone);
        tell(&mut line, returns, Event::Grant, Standing::Granted);
        tell(&mut line, returns, Event::Leave, Standing::Gone);
        tell(&mut line, shed, Event::Shed, Standing::Shed);
        tell(&mut line, shed, Event::Grant, Standing::Shed);
        tell(&mut line, shed, Event::Leave, Standing::Gone);
        tell(&mut line, expired, Event::Expire, Standing::Shed);
        tell(&mut line, leaves, Event::Leave, Standing::Gone);
        assert_eq!(TABLE.untested(&hits), Vec::<String>::new());
        assert_eq!(line.waiting(), 0);
    }

    #[test]
    fn a_place_is_used_again_and_the_old_ticket_is_no_key_to_it() {
        let mut line = Line::default();
        let first = line.join(EVER);
        line.tell(first, Event::Leave);
        let second = line.join(EVER);
        assert_eq!(line.places.len(), 1);
        assert_ne!(first, second);
        assert_eq!(line.tell(first, Event::Leave), None);
        assert_eq!(line.standing(second), Standing::Waiting);
        let stranger = Ticket { place: 9, generation: 0 };
        assert_eq!(line.standing(stranger), Standing::Gone);
    }

    #[test]
    fn who_cannot_use_a_slot_any_more_is_passed_by() {
        let mut line = Line::default();
        let late = line.join(Moment::from_millis(4));
        let in_time = line.join(NOW);
        assert_eq!(line.grant(NOW, End::Oldest), Some(in_time));
        assert_eq!((line.standing(late), line.waiting()), (Standing::Shed, 0));
        assert_eq!(line.grant(NOW, End::Oldest), None);
    }

    #[test]
    fn the_links_agree_with_a_plain_queue() {
        let mut rng = SeededRng::new(11);
        let (mut line, mut plain) = (Line::default(), VecDeque::new());
        for _ in 0..10_000 {
            match rng.up_to(5) {
                0..=2 if plain.len() < 50 => plain.push_back(line.join(EVER)),
                3 => {
                    let granted = line.grant(NOW, End::Oldest);
                    assert_eq!(granted, plain.pop_front());
                    granted.map(|ticket| line.tell(ticket, Event::Claim));
                }
                4 => {
                    let granted = line.grant(NOW, End::Newest);
                    assert_eq!(granted, plain.pop_back());
                    granted.map(|ticket| line.tell(ticket, Event::Leave));
                }
                _ if !plain.is_empty() => {
                    let at = rng.up_to(plain.len() as u64 - 1) as usize;
                    let ticket = plain.remove(at).expect("in range");
                    assert_eq!(line.tell(ticket, Event::Leave), Some(Standing::Waiting));
                }
                _ => {}
            }
            assert_eq!(line.waiting() as usize, plain.len());
        }
        assert!(line.places.len() <= 50, "{} places", line.places.len());
    }
}
