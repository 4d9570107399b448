//! Topic patterns, as AMQP 0-9-1 has them.

/// Does `routing_key` match `pattern`? Words are separated by dots; `*` stands for one word, `#` for
/// any number of them, also none.
///
/// Takes time proportional to the product of both lengths, whatever the pattern.
pub(crate) fn matches(pattern: &str, routing_key: &str) -> bool {
    let words: Vec<&str> = words(routing_key).collect();
    // reach[n]: the pattern so far can have consumed exactly n words.
    let mut reach = vec![false; words.len() + 1];
    reach[0] = true;
    for part in self::words(pattern) {
        if part == "#" {
            let first = reach.iter().position(|reached| *reached).unwrap_or(reach.len());
            reach[first..].fill(true);
        } else {
            for n in (0..words.len()).rev() {
                reach[n + 1] = reach[n] && (part == "*" || part == words[n]);
            }
            reach[0] = false;
        }
    }
    reach[words.len()]
}

/// An empty key has no words, rather than one empty word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_match_word_by_word() {
        for (pattern, key, expected) in [
            ("order.created", "order.created", true),
            ("order.created", "order.cancelled", false),
            ("order.*", "order.created", true),
            ("order.*", "order", false),
            ("order.*", "order.line.added", false),
            ("*.created", "order.created", true),
            ("#", "", true),
            ("#", "a.b.c", true),
            ("order.#", "order", true),
            ("order.#", "order.line.added", true),
            ("order.#", "orders.line", false),
            ("#.created", "created", true),
            ("a.#.z", "a.z", true),
            ("a.#.z", "a.b.c.z", true),
            ("a.#.z", "a.b.c", false),
            ("*.#", "", false),
            ("*.#", "a", true),
            ("#.#", "a", true),
            ("", "", true),
            ("", "a", false),
            ("a.*.c", "a..c", true),
        ] {
            assert_eq!(matches(pattern, key), expected, "{pattern} on {key}");
        }
    }

    /// The obvious definition, exponential on bad patterns.
    fn naive(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern, key) {
            ([], key) => key.is_empty(),
            (["#", rest @ ..], key) => (0..=key.len()).any(|n| naive(rest, &key[n..])),
            ([_, ..], []) => false,
            ([part, rest @ ..], [word, left @ ..]) => {
                (*part == "*" || part == word) && naive(rest, left)
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_obvious_definition(
            pattern in prop::collection::vec(prop::sample::select(vec!["a", "b", "*", "#"]), 0..6),
            key in prop::collection::vec(prop::sample::select(vec!["a", "b"]), 0..6),
        ) {
            prop_assert_eq!(matches(&pattern.join("."), &key.join(".")), naive(&pattern, &key));
        }
    }
}
