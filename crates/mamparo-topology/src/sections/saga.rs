//! `[sagas.<name>]` and `[jobs.<name>]`

use std::time::Duration;

use mamparo_core::limits::BATCH_MAX;

use super::{LONGEST, SHORTEST};
use crate::reader::Section;
use crate::{JobSection, Located, SagaSection, StateDeadline};

pub(super) fn read(name: Located<String>, mut section: Section<'_, '_>) -> Option<SagaSection> {
    let watch_every = section.within_or("watch_every", SHORTEST..=LONGEST, Duration::from_secs(60));
    let batch = section.within_or("batch", 1..=BATCH_MAX, BATCH_MAX);
    let reservation_expiry = section.within("reservation_expiry", SHORTEST..=LONGEST);
    let deadlines = section.table("deadlines").map_or_else(Vec::new, |table| {
        let states = table.all::<Duration>().into_iter();
        states.map(|(state, after)| StateDeadline { state, after }).collect()
    });
    section.finish();
    Some(SagaSection { name, watch_every, batch, reservation_expiry, deadlines })
}

pub(super) fn read_job(name: Located<String>, mut section: Section<'_, '_>) -> Option<JobSection> {
    if !section.has("every") {
        section.missing("every");
    }
    let every = section.within("every", SHORTEST..=LONGEST);
    let older_than = section.within("older_than", Duration::ZERO..=LONGEST);
    section.finish();
    Some(JobSection { name, every: every?, older_than })
}
