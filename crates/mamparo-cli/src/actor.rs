//! Who is at the keyboard: the only room of the command line that reads the environment.

/// The name that was given, else the user's, else `unknown`.
pub(crate) fn actor(given: Option<String>) -> String {
    given.unwrap_or_else(|| named(user))
}

fn named(variable: impl Fn(&str) -> Option<String>) -> String {
    let name = ["USER", "LOGNAME"].into_iter().filter_map(variable).find(|n| !n.trim().is_empty());
    name.unwrap_or_else(|| "unknown".to_owned())
}

fn user(variable: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "a name to sign with is no configuration")]
    std::env::var(variable).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_that_says_something_is_taken() {
        assert_eq!(actor(Some("ana".to_owned())), "ana");
        assert_eq!(named(|name| (name == "LOGNAME").then(|| "bea".to_owned())), "bea");
        assert_eq!(named(|name| Some(if name == "USER" { " " } else { "bea" }.to_owned())), "bea");
        assert_eq!(named(|_| None), "unknown");
    }
}
