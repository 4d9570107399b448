//! A Rust file, taken apart into code, strings and comments.

use std::path::Path;

use super::{files, line_of, read};

/// A Rust file of the workspace. The three texts have the same length and the same line breaks; what
/// belongs to another one is blank.
#[derive(Debug, Clone)]
pub struct Source {
    /// Path relative to the root, with `/` between its parts.
    pub path: String,
    /// The file as it is.
    pub text: String,
    /// Code without comments and without the insides of strings.
    pub code: String,
    /// The insides of strings.
    pub strings: String,
    /// Comments, doc comments included.
    pub comments: String,
    /// Line by line (line 1 at index 0): does it belong to a test?
    test_lines: Vec<bool>,
    /// Modules that are declared here under `#[cfg(test)]` and live in files of their own.
    test_modules: Vec<String>,
}

/// Reads all Rust files of crates, apps, benchmarks and xtask.
///
/// # Errors
/// When a folder or file could not be read.
pub fn load(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for folder in ["crates", "apps", "bench", "xtask"].into_iter().filter(|f| root.join(f).is_dir())
    {
        for path in files(root, folder, ".rs")? {
            sources.push(Source::new(&path, &read(root, &path)?));
        }
    }
    let modules: Vec<String> = sources.iter().flat_map(|s| s.test_modules.clone()).collect();
    for source in &mut sources {
        let of_test = |module: &String| {
            source.path == format!("{module}.rs") || source.path.starts_with(&format!("{module}/"))
        };
        if modules.iter().any(of_test) {
            source.test_lines.fill(true);
        }
    }
    Ok(sources)
}

impl Source {
    /// The file at `path` with `text` in it.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let [code, strings, comments] = mask(text);
        let in_test_folder =
            ["/tests/", "/benches/", "/examples/"].iter().any(|f| path.contains(f));
        let whole = in_test_folder || path.ends_with("/tests.rs");
        let mut test_lines = vec![whole; text.lines().count() + 1];
        let mut test_modules = Vec::new();
        for (at, _) in code.match_indices("#[cfg(test)]") {
            let (end, module) = item_after(&code, at + "#[cfg(test)]".len());
            let lines = line_of(&code, at) - 1..line_of(&code, end);
            test_lines[lines].fill(true);
            test_modules.extend(module.map(|name| format!("{}/{name}", module_folder(path))));
        }
        let (path, text) = (path.to_owned(), text.to_owned());
        Self { path, text, code, strings, comments, test_lines, test_modules }
    }

    /// Does line `line`, counted from one, belong to a test?
    #[must_use]
    pub fn is_test(&self, line: usize) -> bool {
        self.test_lines.get(line - 1).copied().unwrap_or(false)
    }

    /// The code of the file that belongs to tests.
    #[must_use]
    pub fn test_code(&self) -> String {
        let lines = self.code.lines().enumerate();
        lines.filter(|(index, _)| self.is_test(index + 1)).map(|(_, line)| line).collect()
    }

    /// Lines on which `needle` stands in `text` (one of this source's), not as part of a longer
    /// name.
    #[must_use]
    pub fn lines_with(text: &str, needle: &str) -> Vec<usize> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let starts_as_name = needle.bytes().next().is_some_and(is_name);
        let ends_as_name = needle.bytes().last().is_some_and(is_name);
        let bytes = text.as_bytes();
        text.match_indices(needle)
            .filter(|(at, _)| !(starts_as_name && *at > 0 && is_name(bytes[at - 1])))
            .filter(|(at, _)| {
                let next = bytes.get(at + needle.len()).copied();
                !(ends_as_name && next.is_some_and(is_name))
            })
            .map(|(at, _)| line_of(text, at))
            .collect()
    }
}

/// Where submodules of the file at `path` live.
fn module_folder(path: &str) -> String {
    let stem = path.trim_end_matches(".rs");
    let own = ["/mod", "/lib", "/main"].iter().find_map(|name| stem.strip_suffix(name));
    own.unwrap_or(stem).to_owned()
}

/// The end of the item that starts at `from` in masked `code`, and its name if it is `mod name;`.
fn item_after(code: &str, from: usize) -> (usize, Option<String>) {
    let rest = &code[from..];
    let Some(stop) = rest.find(['{', ';']) else { return (code.len(), None) };
    if rest.as_bytes()[stop] == b';' {
        let mut words = rest[..stop].split_whitespace().skip_while(|word| *word != "mod");
        return (from + stop, words.nth(1).map(str::to_owned));
    }
    (closing_brace(code, from + stop), None)
}

/// The byte of the brace that closes the one at `open` in masked `code`.
pub(super) fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Splits Rust text into code, strings and comments of equal length; what is not of a kind is blank
/// in it, line breaks stand in all three. Quotes stay with the code.
#[must_use]
pub fn mask(text: &str) -> [String; 3] {
    const CODE: usize = 0;
    const STRING: usize = 1;
    const COMMENT: usize = 2;
    let bytes = text.as_bytes();
    let mut kinds = vec![CODE; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (length, kind, open, close) = if rest.starts_with(b"//") {
            (until(rest, b"\n"), COMMENT, 0, 0)
        } else if rest.starts_with(b"/*") {
            (block_comment(rest), COMMENT, 0, 0)
        } else if let Some(hashes) = raw_string(bytes, at) {
            let close = [b"\"", vec![b'#'; hashes].as_slice()].concat();
            let open = 2 + hashes;
            let inside = until(rest.get(open..).unwrap_or_default(), &close);
            ((open + inside + close.len()).min(rest.len()), STRING, open, close.len())
        } else if rest[0] == b'"' {
            (quoted(rest, b'"'), STRING, 1, 1)
        } else if rest[0] == b'\'' && is_char(rest) {
            (quoted(rest, b'\''), STRING, 1, 1)
        } else {
            at += 1;
            continue;
        };
        let inside = at + open..(at + length).saturating_sub(close);
        if inside.start < inside.end {
            kinds[inside].fill(kind);
        }
        at += length;
    }
    [CODE, STRING, COMMENT].map(|kind| {
        let keep =
            |(byte, of): (&u8, &usize)| if *of == kind || *byte == b'\n' { *byte } else { b' ' };
        let kept: Vec<u8> = bytes.iter().zip(&kinds).map(keep).collect();
        String::from_utf8_lossy(&kept).into_owned()
    })
}

/// Bytes before `stop` in `rest`, all of them if it never comes.
fn until(rest: &[u8], stop: &[u8]) -> usize {
    rest.windows(stop.len()).position(|window| window == stop).unwrap_or(rest.len())
}

/// Length of the block comment at the start of `rest`; they nest.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (at, depth) = (at + 2, depth + 1);
        } else if rest[at..].starts_with(b"*/") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Hashes of the raw string that starts at `at` (on its `r`), if one does.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    let before = at.checked_sub(1).map(|at| bytes[at]);
    let in_name = before.is_some_and(|b| (b.is_ascii_alphanumeric() && b != b'b') || b == b'_');
    let rest = bytes[at..].strip_prefix(b"r")?;
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    (!in_name && rest.get(hashes) == Some(&b'"')).then_some(hashes)
}

/// Length of the literal in `quote`s at the start of `rest`, escapes respected.
fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Is the quote at the start of `rest` a character's and not a lifetime's?
fn is_char(rest: &[u8]) -> bool {
    match rest.get(1) {
        Some(b'\\') => true,
        // A character of several bytes is never a lifetime here: our names are ASCII.
        Some(byte) => !byte.is_ascii() || rest.get(2) == Some(&b'\''),
        None => false,
    }
}
