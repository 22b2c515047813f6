//! The header says what the library has: every function with its types, every structure with its fields,
//! every status.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(path).expect("a source file")
}

/// The header without its comments.
fn header() -> String {
    let text = read("include/streampool.h");
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("the end of a comment").1;
    }
    code + rest
}

/// One space between words, none at brackets and stars.
fn tidy(text: &str) -> String {
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for mark in ["*", "(", ")", ","] {
        text = text.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    text
}

/// A type of Rust as the header writes it.
fn in_c(rust: &str) -> &str {
    match rust {
        "" => "void",
        "c_int" => "int",
        "isize" => "ssize_t",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "f64" => "double",
        "Status" => "streampool_status",
        "*const c_char" => "const char*",
        "*mut c_void" => "void*",
        "*const c_void" => "const void*",
        "*mut *mut c_void" => "void**",
        "*mut usize" => "size_t*",
        "*mut u64" => "uint64_t*",
        "*const Pool" | "*mut Pool" => "streampool_pool*",
        "*mut *mut Pool" | "*mut *const Pool" => "streampool_pool**",
        "*const Config" => "const streampool_config*",
        "*mut Config" => "streampool_config*",
        "*mut Report" => "streampool_report*",
        "*mut Statistics" => "streampool_stats*",
        "Option<PressureHook>" => "streampool_pressure_hook",
        other => panic!("no type of the header is known for {other}"),
    }
}

/// `type name(type name, …)` of each exported function, by name.
fn exported() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for file in ["src/entry.rs", "src/torch.rs", "src/watch.rs"] {
        let text = read(file);
        for item in text.split("#[unsafe(no_mangle)]").skip(1) {
            let (_, item) = item.split_once(" fn ").expect("a function");
            let (name, item) = item.split_once('(').expect("parameters");
            let (parameters, item) = item.split_once(')').expect("the parameters' end");
            let result = item.split_once('{').expect("a body").0.trim().trim_start_matches("->");
            let parameters = parameters.split(',').map(tidy_rust).filter(|one| !one.is_empty());
            let parameters: Vec<_> = parameters
                .map(|one| {
                    let (name, kind) = one.split_once(": ").expect("a name and a type");
                    let (name, kind) = (name.trim_start_matches('_'), in_c(kind));
                    // The header has a name of its own for a scope.
                    let scope = name == "scope";
                    let kind = if scope {
                        kind.replace("uint64_t", "streampool_scope")
                    } else {
                        kind.into()
                    };
                    if kind.ends_with('*') {
                        format!("{kind}{name}")
                    } else {
                        format!("{kind} {name}")
                    }
                })
                .collect();
            let parameters =
                if parameters.is_empty() { "void".into() } else { parameters.join(",") };
            let result = in_c(result.trim());
            let space = if result.ends_with('*') { "" } else { " " };
            found.insert(name.to_owned(), format!("{result}{space}{name}({parameters})"));
        }
    }
    found
}

fn tidy_rust(parameter: &str) -> String {
    parameter.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn functions() {
    let declared: BTreeMap<String, String> = header()
        .split(';')
        .filter_map(|item| {
            let item = item.rsplit(['}', '\n']).collect::<Vec<_>>();
            // From the last line that begins an item: a declaration may take several lines.
            let item: Vec<_> = item.into_iter().rev().collect();
            let begin =
                item.iter().rposition(|line| line.contains("streampool_") && line.contains('('))?;
            let text = tidy(&item[begin..].join(" "));
            let name = text.split_once('(')?.0.rsplit([' ', '*']).next()?.to_owned();
            (name.starts_with("streampool_") && !text.starts_with("typedef"))
                .then_some((name, text))
        })
        .collect();
    let exported = exported();
    assert!(exported.len() > 25, "{} functions found", exported.len());
    for (name, text) in &exported {
        assert_eq!(declared.get(name), Some(text), "{name} in the header");
    }
    for name in declared.keys() {
        assert!(exported.contains_key(name), "the library has no {name}");
    }
}

/// `type name` of each field of a structure in the header.
fn fields(structure: &str) -> Vec<String> {
    let header = header();
    let begin = format!("typedef struct {structure} {{");
    let (_, body) = header.split_once(&begin).expect("the structure");
    let (body, _) = body.split_once('}').expect("its end");
    body.split(';').map(tidy).filter(|field| !field.is_empty()).collect()
}

/// The same of a structure in `src/layout.rs`.
fn fields_in_rust(structure: &str) -> Vec<String> {
    let text = read("src/layout.rs");
    let begin = format!("pub struct {structure} {{");
    let (_, body) = text.split_once(&begin).expect("the structure");
    let (body, _) = body.split_once("\n}").or_else(|| body.split_once("$(")).expect("its end");
    let lines = body.lines().map(str::trim).filter(|line| line.starts_with("pub "));
    let field = |line: &str| {
        let (name, kind) = line.trim_start_matches("pub ").split_once(": ").expect("a field");
        let kind = in_c(kind.trim_end_matches(','));
        if kind.ends_with('*') { format!("{kind}{name}") } else { format!("{kind} {name}") }
    };
    lines.map(field).collect()
}

#[test]
fn structures() {
    assert_eq!(fields("streampool_config"), fields_in_rust("Config"));
    assert_eq!(fields("streampool_report"), fields_in_rust("Report"));
    // These are written by a macro from a list.
    let text = read("src/layout.rs");
    let (_, list) = text.split_once("\nstatistics! {").expect("the list");
    let (list, _) = list.split_once("\n}").expect("its end");
    let names = list.lines().filter_map(|line| Some(line.trim().split_once(": ")?.0));
    let mut statistics = vec!["uint32_t size".to_owned(), "uint32_t version".to_owned()];
    statistics.extend(names.map(|name| format!("uint64_t {name}")));
    assert!(statistics.len() > 25);
    assert_eq!(fields("streampool_stats"), statistics);
}

#[test]
fn statuses() {
    let header = header();
    let (_, body) = header.split_once("typedef enum streampool_status {").expect("the statuses");
    let (body, _) = body.split_once('}').expect("their end");
    let declared: Vec<_> = body.split(',').map(|one| one.trim().to_owned()).collect();
    let text = read("src/status.rs");
    let (_, list) = text.split_once("\nstatuses! {").expect("the list");
    let (list, _) = list.split_once("\n}").expect("its end");
    let own: Vec<_> = list
        .lines()
        .filter(|line| !line.trim_start().starts_with("///"))
        .filter_map(|line| {
            let (_, value) = line.split_once(" = ")?;
            let (number, name) = value.split_once(" c\"")?;
            Some(format!("{} = {number}", name.trim_end_matches("\",")))
        })
        .collect();
    assert!(own.len() > 10);
    assert_eq!(declared, own);
}
