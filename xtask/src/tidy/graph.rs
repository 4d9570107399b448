//! Who may depend on whom, proven by `cargo tree`.

use std::path::Path;

use super::{Finding, read};
use crate::steps::output;

/// How far a rule looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Everything that is linked into the package, through however many others.
    Linked,
    /// Only what the package's own manifest names, for its code.
    Named,
    /// Everything, for its tests too.
    LinkedInTests,
}

/// One "never".
struct Never {
    /// The packages that it holds for; `*` for all of the workspace.
    who: &'static [&'static str],
    /// Packages for which it does not hold.
    except: &'static [&'static str],
    reach: Reach,
    /// What they never see; `*` for anything at all.
    what: &'static [&'static str],
    why: &'static str,
    way_out: &'static str,
}

const HTTP: &[&str] = &["axum", "reqwest", "hyper", "http", "tonic", "mamparo-http"];

const RULES: &[Never] = &[
    Never {
        who: &["mamparo-core"],
        except: &[],
        reach: Reach::Linked,
        what: &["*"],
        why: "core is decisions over std: it runs in simulators, model checkers and browsers",
        way_out: "pass the value in, or put the driver into the crate of its runtime",
    },
    Never {
        who: &["mamparo-core", "mamparo-topology"],
        except: &[],
        reach: Reach::LinkedInTests,
        what: &["tokio", "async-std", "smol"],
        why: "a decision that needs a runtime to be tested is in the wrong room",
        way_out: "drive it from mamparo-call, -messaging, -saga or -service",
    },
    Never {
        who: &["mamparo-call"],
        except: &[],
        reach: Reach::Linked,
        what: &["axum", "reqwest", "hyper", "sqlx", "lapin", "mamparo-http", "mamparo-store"],
        why: "policies stand in front of anything, so they know no transport",
        way_out: "implement `Classify` for the transport's error in the transport's crate",
    },
    Never {
        who: &["mamparo-store"],
        except: &[],
        reach: Reach::Linked,
        what: &["lapin", "axum", "reqwest", "hyper", "mamparo-messaging", "mamparo-http"],
        why: "state that must survive does not depend on who carries it away",
        way_out: "let the relay or the layer call the store",
    },
    Never {
        who: &["mamparo-messaging"],
        except: &[],
        reach: Reach::Linked,
        what: HTTP,
        why: "a consumer is no web server; its handler brings the client that it needs",
        way_out: "take a trait or a closure, and let the application join them",
    },
    Never {
        who: &["mamparo-messaging", "mamparo-http"],
        except: &[],
        reach: Reach::Linked,
        what: &["mamparo-saga"],
        why: "edges do not know the processes that run over them",
        way_out: "let the application join them",
    },
    Never {
        who: &["mamparo-saga"],
        except: &[],
        reach: Reach::Linked,
        what: &["axum", "reqwest", "hyper", "lapin", "mamparo-http", "mamparo-messaging"],
        why: "a saga's steps are closures; how they reach others is not its business",
        way_out: "let the application join them",
    },
    Never {
        who: &["mamparo-http"],
        except: &[],
        reach: Reach::Linked,
        what: &["lapin", "mamparo-messaging"],
        why: "an HTTP edge answers from its own database; events leave through the outbox",
        way_out: "enqueue in the store's outbox",
    },
    Never {
        who: &["*"],
        except: &["mamparo-messaging"],
        reach: Reach::Named,
        what: &["lapin"],
        why: "a new version of the broker's client changes one crate",
        way_out: "use mamparo_messaging's broker trait",
    },
    Never {
        who: &["*"],
        except: &["mamparo-testkit", "soak", "xtask"],
        reach: Reach::Linked,
        what: &["mamparo-testkit"],
        why: "what helps tests never ships",
        way_out: "move it to [dev-dependencies]",
    },
    Never {
        who: &["*"],
        except: &["techcorp", "xtask"],
        reach: Reach::LinkedInTests,
        what: &["techcorp", "xtask"],
        why: "applications and tools are imported by nobody, so they may change freely",
        way_out: "move what is shared into a crate",
    },
    Never {
        who: &["*"],
        except: &[],
        reach: Reach::LinkedInTests,
        what: &["openssl-sys", "native-tls"],
        why: "a build needs Rust and a C compiler, no system libraries",
        way_out: "choose the dependency's rustls feature",
    },
];

/// One line of `cargo tree --prefix depth`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    depth: usize,
    name: String,
}

/// Dependencies that a rule forbids.
pub(super) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let members = members(root)?;
    let mut found = Vec::new();
    for (name, manifest) in &members {
        let tree = |edges| {
            let arguments =
                ["tree", "-p", name, "-e", edges, "--prefix", "depth", "--format", "{p}"];
            output(root, "cargo", &arguments).map(|text| parse(&text))
        };
        let (linked, in_tests) = (tree("normal,build")?, tree("normal,build,dev")?);
        let text = read(root, manifest)?;
        for rule in RULES.iter().filter(|rule| rule.holds_for(name)) {
            let nodes = if rule.reach == Reach::LinkedInTests { &in_tests } else { &linked };
            for path in rule.broken_by(nodes) {
                // The line of the direct dependency that brings it in.
                let direct = path.split(" → ").nth(1).unwrap_or_default();
                let line = text.lines().position(|line| line.starts_with(direct));
                found.push(Finding {
                    file: manifest.clone(),
                    line: line.map_or(1, |at| at + 1),
                    what: format!("a dependency that must not be: {path}"),
                    why: rule.why.to_owned(),
                    way_out: rule.way_out.to_owned(),
                });
            }
        }
    }
    Ok(found)
}

impl Never {
    fn holds_for(&self, name: &str) -> bool {
        let named = self.who.contains(&"*") || self.who.contains(&name);
        named && !self.except.contains(&name)
    }

    /// The ways, from the package itself, on which `nodes` reach what is forbidden; the shortest
    /// name of each, once.
    fn broken_by(&self, nodes: &[Node]) -> Vec<String> {
        let mut way: Vec<&str> = Vec::new();
        let mut found: Vec<(&str, String)> = Vec::new();
        for node in nodes {
            way.truncate(node.depth);
            way.push(&node.name);
            // Of "anything at all", what the manifest names is enough to know.
            let any = self.what.contains(&"*") && node.depth == 1;
            let hit = any || self.what.contains(&node.name.as_str());
            let near = self.reach != Reach::Named || node.depth == 1;
            let new = !found.iter().any(|(name, _)| *name == node.name);
            if node.depth > 0 && hit && near && new {
                found.push((&node.name, way.join(" → ")));
            }
        }
        found.into_iter().map(|(_, way)| way).collect()
    }
}

/// Name and manifest (relative to the root) of each member of the workspace.
fn members(root: &Path) -> Result<Vec<(String, String)>, String> {
    let text = output(root, "cargo", &["metadata", "--format-version", "1", "--no-deps"])?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("read cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let prefix = format!("{}/", text(&metadata["workspace_root"]));
    Ok(packages
        .map(|package| {
            let manifest = text(&package["manifest_path"]);
            let manifest = manifest.strip_prefix(&prefix).unwrap_or(&manifest).to_owned();
            (text(&package["name"]), manifest)
        })
        .collect())
}

/// Reads lines such as `2tokio v1.52.3`.
fn parse(tree: &str) -> Vec<Node> {
    let node = |line: &str| {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let (depth, rest) = line.split_at(digits);
        let name = rest.split_whitespace().next()?.to_owned();
        Some(Node { depth: depth.parse().ok()?, name })
    };
    tree.lines().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0mamparo-core v0.1.0 (/somewhere)\n1bytes v1.0.0\n2serde v1.0.0\n\
        1tokio v1.0.0\n2lapin v3.0.0\n\n1http v1.0.0\n1tokio v1.0.0 (*)\n";

    fn rule(reach: Reach, what: &'static [&'static str]) -> Never {
        Never { who: &["*"], except: &["free"], reach, what, why: "", way_out: "" }
    }

    #[test]
    fn a_forbidden_dependency_is_found_with_its_way() {
        let nodes = parse(TREE);
        assert_eq!(
            rule(Reach::Linked, &["lapin", "axum"]).broken_by(&nodes),
            ["mamparo-core → tokio → lapin"]
        );
        assert_eq!(rule(Reach::Named, &["lapin"]).broken_by(&nodes), [""; 0]);
        assert_eq!(rule(Reach::Named, &["tokio"]).broken_by(&nodes), ["mamparo-core → tokio"]);
        assert_eq!(rule(Reach::Linked, &["*"]).broken_by(&nodes).len(), 3);
    }

    #[test]
    fn a_package_never_breaks_a_rule_by_being_itself() {
        assert_eq!(rule(Reach::Linked, &["mamparo-core"]).broken_by(&parse(TREE)), [""; 0]);
        assert!(!rule(Reach::Linked, &[]).holds_for("free"));
        assert!(rule(Reach::Linked, &[]).holds_for("bound"));
    }

    #[test]
    fn every_rule_can_fail() {
        for rule in RULES {
            let who = if rule.who == ["*"] { "any" } else { rule.who[0] };
            let what = if rule.what == ["*"] { "any-other" } else { rule.what[0] };
            let nodes = parse(&format!("0{who} v0.1.0\n1{what} v1.0.0\n"));
            assert!(rule.holds_for(who));
            assert_eq!(rule.broken_by(&nodes), [format!("{who} → {what}")]);
        }
    }
}
