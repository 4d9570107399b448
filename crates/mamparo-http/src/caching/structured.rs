//! As much of structured fields (RFC 9651) as `Cache-Status` needs: a list of tokens or strings with
//! parameters.

/// A member of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    /// The token or string itself.
    pub(super) name: String,
    params: Vec<(String, Bare)>,
}

/// A parameter's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    Token(String),
    String(String),
    Boolean(bool),
    /// A decimal, a date, bytes, a display string: well-formed, and of no use here.
    Other,
}

impl Member {
    pub(super) fn param(&self, name: &str) -> Option<&Bare> {
        // The last one counts (RFC 9651 §4.2.3.2).
        self.params.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// The largest magnitude of an integer: fifteen digits.
const INTEGER_MAX: i64 = 999_999_999_999_999;

/// An integer, cut to what the standard can say.
pub(super) fn integer(value: i64) -> i64 {
    value.clamp(-INTEGER_MAX, INTEGER_MAX)
}

/// `text` as a string in quotes. What a string can't hold (control characters, all but ASCII) is
/// percent-encoded.
pub(super) fn string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            0x20..=0x7E => quoted.push(char::from(byte)),
            _ => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted.push('"');
    quoted
}

/// `text` as it is where it is a token, else as a string.
pub(super) fn token_or_string(text: &str) -> String {
    let mut letters = text.chars();
    let token = letters.next().is_some_and(begins_token) && letters.all(is_token);
    if token { text.to_owned() } else { string(text) }
}

/// Reads a list; `None` when it breaks the syntax. An empty text is an empty list.
pub(super) fn list(text: &str) -> Option<Vec<Member>> {
    let mut reader = Reader { rest: text.trim_matches(' ') };
    let mut members = Vec::new();
    while !reader.rest.is_empty() {
        members.push(reader.member()?);
        reader.skip(&[' ', '\t']);
        if reader.rest.is_empty() {
            break;
        }
        reader.take(',')?;
        reader.skip(&[' ', '\t']);
        // A comma is followed by something.
        if reader.rest.is_empty() {
            return None;
        }
    }
    Some(members)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, letter: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(letter)?;
        Some(())
    }

    fn skip(&mut self, letters: &[char]) {
        self.rest = self.rest.trim_start_matches(letters);
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|letter| !fits(letter)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn member(&mut self) -> Option<Member> {
        let name = match self.bare()? {
            Bare::Token(name) | Bare::String(name) => name,
            Bare::Integer(_) | Bare::Boolean(_) | Bare::Other => return None,
        };
        let mut params = Vec::new();
        while self.peek() == Some(';') {
            self.take(';')?;
            self.skip(&[' ']);
            let starts = |letter: char| letter.is_ascii_lowercase() || letter == '*';
            if !self.peek().is_some_and(starts) {
                return None;
            }
            let key = self.take_while(|letter| {
                starts(letter) || letter.is_ascii_digit() || matches!(letter, '_' | '-' | '.')
            });
            let value = match self.take('=') {
                Some(()) => self.bare()?,
                None => Bare::Boolean(true),
            };
            params.push((key.to_owned(), value));
        }
        Some(Member { name, params })
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.peek()? {
            '"' => self.string().map(Bare::String),
            '?' => self.boolean(),
            ':' => self.between(':', |letter| {
                letter.is_ascii_alphanumeric() || matches!(letter, '+' | '/' | '=')
            }),
            '@' => {
                self.take('@')?;
                let Bare::Integer(_) = self.number()? else { return None };
                Some(Bare::Other)
            }
            '%' => {
                self.take('%')?;
                self.between('"', |letter| matches!(letter, ' '..='~') && letter != '"')
            }
            '-' | '0'..='9' => self.number(),
            letter if begins_token(letter) => {
                Some(Bare::Token(self.take_while(is_token).to_owned()))
            }
            _ => None,
        }
    }

    fn string(&mut self) -> Option<String> {
        self.take('"')?;
        let mut text = String::new();
        loop {
            text.push_str(self.take_while(|c| matches!(c, ' '..='~') && c != '"' && c != '\\'));
            match self.peek()? {
                '"' => return self.take('"').map(|()| text),
                '\\' => {
                    self.take('\\')?;
                    let escaped = self.peek().filter(|letter| matches!(letter, '"' | '\\'))?;
                    self.take(escaped)?;
                    text.push(escaped);
                }
                _ => return None,
            }
        }
    }

    fn boolean(&mut self) -> Option<Bare> {
        self.take('?')?;
        let value = self.peek().filter(|letter| matches!(letter, '0' | '1'))?;
        self.take(value)?;
        Some(Bare::Boolean(value == '1'))
    }

    fn between(&mut self, end: char, fits: impl Fn(char) -> bool) -> Option<Bare> {
        self.take(end)?;
        self.take_while(fits);
        self.take(end).map(|()| Bare::Other)
    }

    /// An integer of at most 15 digits, or a decimal of at most 12 and 3.
    fn number(&mut self) -> Option<Bare> {
        let negative = self.take('-').is_some();
        let whole = self.take_while(|letter| letter.is_ascii_digit());
        if self.take('.').is_some() {
            let fraction = self.take_while(|letter| letter.is_ascii_digit());
            let fits = (1..=12).contains(&whole.len()) && (1..=3).contains(&fraction.len());
            return fits.then_some(Bare::Other);
        }
        let number: i64 = if whole.len() <= 15 { whole.parse().ok()? } else { return None };
        Some(Bare::Integer(if negative { -number } else { number }))
    }
}

fn begins_token(letter: char) -> bool {
    letter.is_ascii_alphabetic() || letter == '*'
}

fn is_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(letter)
}
