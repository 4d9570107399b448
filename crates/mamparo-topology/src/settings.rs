//! `[settings]`: the application's own values, read with their types.

use std::time::Duration;

use crate::reader::{Expected, nearest_hint};
use crate::{Located, Problem, Problems, parse_duration};

/// A plain value of the file.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingValue {
    /// `"text"`, durations included.
    Text(String),
    /// `42`
    Integer(i64),
    /// `0.5`
    Float(f64),
    /// `true`
    Flag(bool),
}

impl SettingValue {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number with a point",
            Self::Flag(_) => "a boolean",
        }
    }
}

/// A type that a plain value can be read as: strings, integers, numbers, booleans, durations.
pub trait Setting: Sized + Default + sealed::Sealed {
    /// Reads `value`.
    ///
    /// # Errors
    /// What was expected instead, and a hint.
    #[doc(hidden)]
    fn read(value: &SettingValue) -> Result<Self, Expected>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for String {}
    impl Sealed for bool {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for i64 {}
    impl Sealed for f64 {}
    impl Sealed for std::time::Duration {}
}

impl Setting for String {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        match value {
            SettingValue::Text(text) => Ok(text.clone()),
            SettingValue::Integer(_) | SettingValue::Float(_) | SettingValue::Flag(_) => {
                Err(Expected::kind("a string", value))
            }
        }
    }
}

impl Setting for bool {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        match value {
            SettingValue::Flag(flag) => Ok(*flag),
            SettingValue::Text(_) | SettingValue::Integer(_) | SettingValue::Float(_) => {
                Err(Expected::kind("true or false", value))
            }
        }
    }
}

impl Setting for f64 {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        match value {
            SettingValue::Float(number) => Ok(*number),
            // Whole numbers of a policy are far below 2⁵³, where an f64 is exact.
            SettingValue::Integer(number) => Ok(*number as Self),
            SettingValue::Text(_) | SettingValue::Flag(_) => Err(Expected::kind("a number", value)),
        }
    }
}

impl Setting for i64 {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        match value {
            SettingValue::Integer(number) => Ok(*number),
            SettingValue::Text(_) | SettingValue::Float(_) | SettingValue::Flag(_) => {
                Err(Expected::kind("an integer", value))
            }
        }
    }
}

impl Setting for u64 {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        Self::try_from(i64::read(value)?).map_err(|_| Expected::text("must not be negative"))
    }
}

impl Setting for u32 {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        let number = u64::read(value)?;
        Self::try_from(number).map_err(|_| Expected::text(format!("must be at most {}", Self::MAX)))
    }
}

impl Setting for Duration {
    fn read(value: &SettingValue) -> Result<Self, Expected> {
        match value {
            SettingValue::Text(text) => {
                parse_duration(text).map_err(|hint| Expected::text("is not a duration").hint(hint))
            }
            SettingValue::Integer(number) => Err(Expected::text("a duration needs a unit")
                .hint(format!("write \"{number}ms\" or \"{number}s\""))),
            SettingValue::Float(_) | SettingValue::Flag(_) => {
                Err(Expected::kind("a duration, for example \"700ms\"", value))
            }
        }
    }
}

/// The free table of the application.
///
/// ```
/// let file = "[service]\nname = \"orders\"\nowner = \"team\"\n[settings]\npage = 20\n";
/// let policy = mamparo_topology::parse("orders.toml", file).unwrap();
/// let mut settings = policy.settings.reader();
/// let page = settings.or("page", 10_u32);
/// let hold = settings.or("hold", std::time::Duration::from_secs(900));
/// settings.finish().unwrap();
/// assert_eq!((page, hold.as_secs()), (20, 900));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) entries: Vec<(String, Located<SettingValue>)>,
}

impl Settings {
    /// Starts reading; mistakes are kept until [`SettingsReader::finish`].
    #[must_use]
    pub fn reader(&self) -> SettingsReader<'_> {
        SettingsReader { settings: self, asked: Vec::new(), problems: Vec::new() }
    }

    /// The value called `name`, as it stands in the file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Located<SettingValue>> {
        self.entries.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// Reads settings one by one, and reports all mistakes together at the end.
#[derive(Debug)]
pub struct SettingsReader<'a> {
    settings: &'a Settings,
    asked: Vec<String>,
    problems: Vec<Problem>,
}

impl SettingsReader<'_> {
    /// The setting `name`, or `default` when the file doesn't set it.
    ///
    /// A value of the wrong type also answers the default; [`SettingsReader::finish`] then fails.
    pub fn or<T: Setting>(&mut self, name: &str, default: T) -> T {
        self.read(name).unwrap_or(default)
    }

    /// The setting `name`, which the file must set.
    ///
    /// The answer only stands when [`SettingsReader::finish`] does: a missing value is the type's
    /// default until then.
    pub fn required<T: Setting>(&mut self, name: &str) -> T {
        if self.settings.get(name).is_none() {
            let (file, line) = (&self.settings.file, self.settings.line);
            let key = format!("settings.{name}");
            self.problems.push(Problem::of_key(file, line, key, "missing required key"));
        }
        self.read(name).unwrap_or_default()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Everything missing, of a wrong type or out of range, and every setting that was never asked
    /// for, with the nearest one that was.
    pub fn finish(mut self) -> Result<(), Problems> {
        for (key, value) in &self.settings.entries {
            if !self.asked.contains(key) {
                let known: Vec<&str> = self.asked.iter().map(String::as_str).collect();
                let path = format!("settings.{key}");
                let mut problem =
                    Problem::of_key(&self.settings.file, value.line, path, "unknown key");
                problem.hint = nearest_hint(key, &known);
                self.problems.push(problem);
            }
        }
        self.problems.sort_by_key(|problem| problem.line);
        Problems::or(self.problems, ())
    }

    fn read<T: Setting>(&mut self, name: &str) -> Option<T> {
        self.asked.push(name.to_owned());
        let value = self.settings.get(name)?;
        match T::read(value) {
            Ok(value) => Some(value),
            Err(expected) => {
                let key = format!("settings.{name}");
                let mut problem =
                    Problem::of_key(&self.settings.file, value.line, key, expected.message);
                problem.hint = expected.hint;
                self.problems.push(problem);
                None
            }
        }
    }
}
