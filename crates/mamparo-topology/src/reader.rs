//! Typed reading of TOML with every mistake kept: the floor under all sections.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::{Located, Problem, Setting, SettingValue, show_duration};

/// What a value should have been.
#[derive(Debug)]
pub struct Expected {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Expected {
    pub(crate) fn text(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub(crate) fn kind(expected: &str, found: &SettingValue) -> Self {
        Self::text(format!("expected {expected}, found {}", found.kind()))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Collects the mistakes of one file, and knows which line a byte stands on.
pub(crate) struct Sink<'t> {
    pub(crate) file: &'t str,
    text: &'t str,
    line_starts: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
    /// The text has syntax errors: a key may only seem to be missing.
    pub(crate) broken: bool,
}

impl<'t> Sink<'t> {
    pub(crate) fn new(file: &'t str, text: &'t str, broken: bool) -> Self {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
        Self { file, text, line_starts, problems: RefCell::default(), broken }
    }

    pub(crate) fn line(&self, offset: usize) -> u32 {
        let line = self.line_starts.partition_point(|start| *start <= offset);
        u32::try_from(line).unwrap_or(u32::MAX)
    }

    fn column(&self, offset: usize) -> Option<u32> {
        let start = self.line_starts.iter().rev().find(|start| **start <= offset)?;
        let before = self.text.get(*start..offset)?;
        u32::try_from(before.chars().count() + 1).ok()
    }

    pub(crate) fn report(&self, offset: usize, key: &str, message: &str, hint: Option<String>) {
        let mut problem = Problem::of_key(self.file, self.line(offset), key, message);
        problem.column = self.column(offset);
        problem.hint = hint;
        self.push(problem);
    }

    pub(crate) fn push(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }
}

/// A table that is being read. Keys that nobody asked for are reported by [`Section::finish`].
pub(crate) struct Section<'s, 't> {
    pub(crate) sink: &'s Sink<'t>,
    pub(crate) path: String,
    table: &'s DeTable<'t>,
    offset: usize,
    asked: Vec<&'static str>,
}

/// A value with its key's path and its place, before it has a type.
pub(crate) type Raw<'s, 't> = &'s Spanned<DeValue<'t>>;

impl<'s, 't> Section<'s, 't> {
    pub(crate) fn new(
        sink: &'s Sink<'t>,
        path: String,
        table: &'s DeTable<'t>,
        offset: usize,
    ) -> Self {
        Self { sink, path, table, offset, asked: Vec::new() }
    }

    /// The path of `key` in this table, quoted where TOML would need it.
    pub(crate) fn path_of(&self, key: &str) -> String {
        let key = quoted(key);
        if self.path.is_empty() { key } else { format!("{}.{key}", self.path) }
    }

    /// The line that the table starts on.
    pub(crate) fn line(&self) -> u32 {
        self.sink.line(self.offset)
    }

    /// Reports a mistake in the value of `key`, or in the table when the key isn't set.
    pub(crate) fn complain(&self, key: &str, message: &str, hint: Option<String>) {
        let offset = self.table.get_key_value(key).map_or(self.offset, |(key, _)| key.span().start);
        self.sink.report(offset, &self.path_of(key), message, hint);
    }

    /// The untyped value of `key`.
    pub(crate) fn raw(&mut self, key: &'static str) -> Option<Raw<'s, 't>> {
        self.asked.push(key);
        self.table.get(key)
    }

    /// The value of `key`; `None` when it isn't set, or is wrong and reported.
    pub(crate) fn get<T: Setting>(&mut self, key: &'static str) -> Option<Located<T>> {
        let raw = self.raw(key)?;
        self.typed(&self.path_of(key), raw)
    }

    /// The value of `key`, reported when it isn't set.
    pub(crate) fn require<T: Setting>(&mut self, key: &'static str) -> Option<Located<T>> {
        let value = self.get(key);
        if !self.has(key) {
            self.missing(key);
        }
        value
    }

    /// The value of `key`, reported when it lies outside of `range`.
    pub(crate) fn within<T: Setting + PartialOrd + Show>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
    ) -> Option<Located<T>> {
        let value = self.get::<T>(key)?;
        if range.contains(&value.value) {
            return Some(value);
        }
        let message = format!("{} is out of range: {}", value.value.show(), T::show_range(&range));
        self.complain(key, &message, value.value.way_into(&range));
        None
    }

    /// Like [`Section::within`], with a default for what isn't set.
    pub(crate) fn within_or<T: Setting + PartialOrd + Show>(
        &mut self,
        key: &'static str,
        range: RangeInclusive<T>,
        default: T,
    ) -> Located<T> {
        self.within(key, range).unwrap_or(Located::nowhere(default))
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    pub(crate) fn missing(&self, key: &str) {
        if !self.sink.broken {
            self.sink.report(self.offset, &self.path_of(key), "missing required key", None);
        }
    }

    /// The table under `key`.
    pub(crate) fn table(&mut self, key: &'static str) -> Option<Section<'s, 't>> {
        let raw = self.raw(key)?;
        let offset = self.key_offset(key, raw);
        self.sub(self.path_of(key), offset, raw)
    }

    /// The tables under `key`, written as `[[key]]`.
    pub(crate) fn tables(&mut self, key: &'static str) -> Vec<Section<'s, 't>> {
        let Some(raw) = self.raw(key) else { return Vec::new() };
        let path = self.path_of(key);
        let Some(array) = raw.get_ref().as_array() else {
            self.complain(key, &format!("write each one as [[{key}]]"), None);
            return Vec::new();
        };
        let with_index = array.iter().enumerate();
        with_index
            .filter_map(|(index, raw)| self.sub(format!("{path}[{index}]"), raw.span().start, raw))
            .collect()
    }

    /// All tables in this one, by name and in the order of the file.
    pub(crate) fn named(&self) -> Vec<(Located<String>, Section<'s, 't>)> {
        let mut found: Vec<_> = self.entries().collect();
        found.sort_by_key(|(key, _)| key.span().start);
        found
            .into_iter()
            .filter_map(|(key, raw)| {
                let offset = key.span().start;
                let section = self.sub(self.path_of(key.get_ref()), offset, raw)?;
                Some((Located::at(self.sink.line(offset), key.get_ref().to_string()), section))
            })
            .collect()
    }

    /// All values in this table as `T`, by name and in the order of the file.
    pub(crate) fn all<T: Setting>(&self) -> Vec<(String, Located<T>)> {
        let mut found: Vec<_> = self.entries().collect();
        found.sort_by_key(|(key, _)| key.span().start);
        found
            .into_iter()
            .filter_map(|(key, raw)| {
                let value = self.typed(&self.path_of(key.get_ref()), raw)?;
                Some((key.get_ref().to_string(), value))
            })
            .collect()
    }

    /// All plain values in this table, for the application to read.
    pub(crate) fn plain(&self) -> Vec<(String, Located<SettingValue>)> {
        let mut found: Vec<_> = self.entries().collect();
        found.sort_by_key(|(key, _)| key.span().start);
        found
            .into_iter()
            .filter_map(|(key, raw)| {
                let value = self.value_of(&self.path_of(key.get_ref()), raw)?;
                Some((key.get_ref().to_string(), value))
            })
            .collect()
    }

    /// The strings of the array under `key`, each with its place in the text.
    pub(crate) fn strings(&mut self, key: &'static str) -> Vec<Located<String>> {
        let Some(raw) = self.raw(key) else { return Vec::new() };
        let path = self.path_of(key);
        self.strings_of(&path, raw)
    }

    /// The strings of the array `raw`.
    pub(crate) fn strings_of(&self, path: &str, raw: Raw<'s, 't>) -> Vec<Located<String>> {
        self.elements(path, raw).into_iter().filter_map(|raw| self.typed(path, raw)).collect()
    }

    /// The elements of the array `raw`; anything else is reported.
    pub(crate) fn elements(&self, path: &str, raw: Raw<'s, 't>) -> Vec<Raw<'s, 't>> {
        if let Some(array) = raw.get_ref().as_array() {
            return array.iter().collect();
        }
        let message = format!("expected an array, found {}", with_article(raw.get_ref()));
        self.sink.report(raw.span().start, path, &message, None);
        Vec::new()
    }

    /// `raw` as a `T`; a wrong type is reported.
    pub(crate) fn typed<T: Setting>(&self, path: &str, raw: Raw<'s, 't>) -> Option<Located<T>> {
        let value = self.value_of(path, raw)?;
        match T::read(&value.value) {
            Ok(read) => Some(Located::at(value.line, read)),
            Err(expected) => {
                self.sink.report(raw.span().start, path, &expected.message, expected.hint);
                None
            }
        }
    }

    /// Reports the keys that nobody asked for, each with the nearest known one.
    pub(crate) fn finish(self) {
        for (key, _) in self.entries() {
            let name = key.get_ref().as_ref();
            if !self.asked.contains(&name) {
                let hint = nearest_hint(name, &self.asked);
                self.sink.report(key.span().start, &self.path_of(name), "unknown key", hint);
            }
        }
    }

    fn entries(&self) -> impl Iterator<Item = (&'s Spanned<toml::de::DeString<'t>>, Raw<'s, 't>)> {
        self.table.iter()
    }

    fn key_offset(&self, key: &str, raw: Raw<'s, 't>) -> usize {
        self.table.get_key_value(key).map_or(raw.span(), |(key, _)| key.span()).start
    }

    fn sub(&self, path: String, offset: usize, raw: Raw<'s, 't>) -> Option<Section<'s, 't>> {
        if let Some(table) = raw.get_ref().as_table() {
            return Some(Section::new(self.sink, path, table, offset));
        }
        let message = format!("expected a table, found {}", with_article(raw.get_ref()));
        self.sink.report(offset, &path, &message, None);
        None
    }

    fn value_of(&self, path: &str, raw: Raw<'s, 't>) -> Option<Located<SettingValue>> {
        let Range { start, .. } = raw.span();
        let value = match raw.get_ref() {
            DeValue::String(text) => Ok(SettingValue::Text(text.to_string())),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(SettingValue::Integer)
                .map_err(|_| format!("{number} is too large")),
            DeValue::Float(number) => number
                .as_str()
                .parse()
                .map(SettingValue::Float)
                .map_err(|_| format!("{number} is not a number")),
            DeValue::Boolean(flag) => Ok(SettingValue::Flag(*flag)),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                Err(format!("expected a plain value, found {}", with_article(raw.get_ref())))
            }
        };
        match value {
            Ok(value) => Some(Located::at(self.sink.line(start), value)),
            Err(message) => {
                self.sink.report(start, path, &message, None);
                None
            }
        }
    }
}

/// Where the value of `path` begins, or as much of the path as there is: what isn't set is a default,
/// and its mistake is one of the table.
pub(crate) fn offset_of<'p>(root: &DeTable<'_>, path: impl IntoIterator<Item = &'p str>) -> usize {
    let (mut offset, mut table) = (0, Some(root));
    for step in path {
        let Some((key, value)) = table.and_then(|table| table.get_key_value(step)) else { break };
        (offset, table) = (key.span().start, value.get_ref().as_table());
    }
    offset
}

/// How a value stands in a message about its range.
pub(crate) trait Show: Sized {
    fn show(&self) -> String;

    fn show_range(range: &RangeInclusive<Self>) -> String {
        format!("from {} to {}", range.start().show(), range.end().show())
    }

    /// What was probably meant by a value outside of `range`.
    fn way_into(&self, _range: &RangeInclusive<Self>) -> Option<String> {
        None
    }
}

impl Show for u32 {
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Show for f64 {
    fn show(&self) -> String {
        self.to_string()
    }

    /// The least number there is stands for "more than nothing"; nobody wants to read its 308 zeros.
    fn show_range(range: &RangeInclusive<Self>) -> String {
        let (low, high) = (range.start(), range.end());
        if *low == Self::MIN_POSITIVE {
            format!("more than 0, {high} at most")
        } else {
            format!("from {low} to {high}")
        }
    }

    /// Who writes 50 for a share means 50 %.
    fn way_into(&self, range: &RangeInclusive<Self>) -> Option<String> {
        let share = self / 100.0;
        let meant = *self > 1.0 && *range.end() <= 1.0 && range.contains(&share);
        meant.then(|| format!("write a share: {share} is {self} %"))
    }
}

impl Show for Duration {
    fn show(&self) -> String {
        show_duration(*self)
    }
}

/// A key as it stands in a path: quoted where TOML would need it.
pub(crate) fn quoted(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { format!("{key:?}") }
}

/// The known word that was probably meant, or all of them.
pub(crate) fn nearest_hint(word: &str, known: &[&str]) -> Option<String> {
    let distance = |candidate: &str| strsim::damerau_levenshtein(word, candidate);
    let nearest = known.iter().min_by_key(|candidate| distance(candidate))?;
    // "lifo" is one letter from "fifo", but a whole part of "adaptive-lifo".
    let mut having = known.iter().filter(|candidate| word.len() > 3 && candidate.contains(word));
    if let (Some(candidate), None) = (having.next(), having.next()) {
        return Some(format!("did you mean {candidate}?"));
    }
    // A third of the letters may be wrong; beyond that it is a guess, and the list helps more.
    if distance(nearest) <= (nearest.chars().count() / 3).max(1) {
        return Some(format!("did you mean {nearest}?"));
    }
    Some(format!("known here: {}", known.join(", ")))
}

fn with_article(value: &DeValue<'_>) -> String {
    let kind = value.type_str();
    let article = if kind.starts_with(['a', 'i']) { "an" } else { "a" };
    format!("{article} {kind}")
}
