//! The rules of the house hold for this workspace. `cargo xtask tidy` prints the same.

use std::path::Path;

use xtask::tidy::{self, Source};

#[test]
fn the_workspace_keeps_the_rules_of_the_house() {
    let root = tidy::workspace_root().expect("a root");
    let report = tidy::check(&root).expect("readable files and a working cargo");
    assert!(report.files > 20, "only {} files were read", report.files);
    assert!(report.findings.is_empty(), "\n{report}");
}

#[test]
fn a_missing_workspace_is_an_error_and_no_clean_bill() {
    assert!(tidy::check(Path::new("no/such/folder")).is_err());
}

#[test]
fn code_strings_and_comments_are_told_apart() {
    let text = "let a = 'x'; // c \"no\"\nlet b: &'static str = \"s // é\"; /* d /* e */ f */ g('\\'', b\"h\");\n\
        let r = r##\"i \"# j\"##; let l: Fn<'a, 'b> = '\"';\n";
    let [code, strings, comments] = tidy::mask(text);
    for masked in [&code, &strings, &comments] {
        assert_eq!(masked.len(), text.len());
        assert_eq!(masked.lines().count(), 3);
    }
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        words(&code),
        "let a = ' '; let b: &'static str = \" \"; g(' ', b\" \"); \
         let r = r##\" \"##; let l: Fn<'a, 'b> = ' ';"
    );
    assert_eq!(words(&strings), "x s // é \\' h i \"# j \"");
    assert_eq!(words(&comments), "// c \"no\" /* d /* e */ f */");
}

#[test]
fn test_code_is_known_by_attribute_and_by_place() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let source = Source::new("crates/x/src/y.rs", text);
    let tests: Vec<bool> = (1..=6).map(|line| source.is_test(line)).collect();
    assert_eq!(tests, [false, true, true, true, true, false]);
    assert!(Source::new("crates/x/tests/y.rs", text).is_test(1));
    assert!(Source::new("crates/x/src/y/tests.rs", text).is_test(1));
}

#[test]
fn a_test_module_in_a_file_of_its_own_is_a_test() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("crates/x/src/y");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("mod.rs"), "#[cfg(test)]\nmod cases;\nmod z;\n").expect("a file");
    std::fs::write(folder.join("cases.rs"), "fn a() {}\n").expect("a file");
    std::fs::write(folder.join("z.rs"), "fn a() {}\n").expect("a file");
    let sources = tidy::load(root.path()).expect("readable files");
    let tests: Vec<_> = sources.iter().filter(|s| s.is_test(1)).map(|s| s.path.as_str()).collect();
    // The first line of mod.rs is the attribute itself.
    assert_eq!(tests, ["crates/x/src/y/cases.rs", "crates/x/src/y/mod.rs"]);
}
