//! An experiment's file as JSON Schema (draft 2020-12), for editors and other programs.
//!
//! There is no second list of keys: the parser is asked. It names the keys of a table when it meets one it does not know,
//! and the words of a value likewise; which numbers and texts it takes is tried. So what fits the schema is what the parser
//! takes value by value; what values mean together it judges alone.

use serde_json::{Map, Value, json};

use super::error::ExperimentError;
use super::file;

/// No key and no word of any table.
const UNKNOWN: &str = "no-such-word";
/// Numbers of which every key that takes one takes one.
const NUMBERS: [&str; 6] = ["1", "2", "4", "64", "100", "0"];
/// Texts of which every key that takes free text takes one.
const TEXTS: [&str; 5] = ["\"no-such-word\"", "\"1s\"", "\"50%\"", "\"host\"", "\"1\""];

/// The schema, indented, with a line's end.
pub fn text() -> String {
    let mut schema = table(&KeyPath::default()).map_or(json!({}), |found| found.schema);
    if let Value::Object(fields) = &mut schema {
        fields.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".into(), json!("an experiment of weir-lab"));
    }
    format!("{schema:#}\n")
}

/// Where in a file: keys of tables, with what stands around the value of each.
#[derive(Clone, Default)]
struct KeyPath(Vec<(String, [&'static str; 2])>);

/// A value alone, in a list, in a list of lists, in a list of two; with the lists around it.
const AROUND: [([&str; 2], usize); 4] =
    [(["", ""], 0), (["[", "]"], 1), (["[[", "]]"], 2), (["[\"text\", ", "]"], 1)];

impl KeyPath {
    fn key(&self, key: &str, around: [&'static str; 2]) -> KeyPath {
        KeyPath(self.0.iter().cloned().chain([(key.to_owned(), around)]).collect())
    }

    /// What the parser has against this value here; what it misses elsewhere is no matter.
    fn refused(&self, value: &str) -> Option<String> {
        let mut text = value.to_owned();
        for (at, (key, [open, close])) in self.0.iter().enumerate().rev() {
            text = format!("{key} = {open}{text}{close}");
            if at > 0 {
                text = format!("{{{text}}}");
            }
        }
        match file::parse("", &text).map_err(|refused| *refused.error) {
            Err(ExperimentError::Toml(said)) if !said.starts_with("missing field") => Some(said),
            _ => None,
        }
    }

    /// The field that the parser misses first when a table has these.
    fn misses(&self, fields: &str) -> Option<String> {
        let table = if self.0.is_empty() { fields.replace(", ", "\n") } else { format!("{{{fields}}}") };
        let mut text = table;
        for (at, (key, [open, close])) in self.0.iter().enumerate().rev() {
            text = format!("{key} = {open}{text}{close}");
            if at > 0 {
                text = format!("{{{text}}}");
            }
        }
        match file::parse("", &text).err().map(|refused| *refused.error) {
            Some(ExperimentError::Toml(said)) => said
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split_once('`'))
                .map(|s| s.0.to_owned()),
            _ => None,
        }
    }
}

/// A schema, and a value that fits it.
struct Found {
    schema: Value,
    sample: String,
}

/// The table here, if one may stand here.
fn table(here: &KeyPath) -> Option<Found> {
    let unknown = format!("{} = 1", UNKNOWN);
    let said = match here.0.is_empty() {
        true => file::parse("", &unknown).err().map(|refused| refused.error.to_string()),
        false => here.refused(&format!("{{{unknown}}}")),
    }?;
    let (_, expected) = said.split_once("unknown field `no-such-word`, expected ")?;
    let fields = between(expected, '`');
    let mut properties = Map::new();
    let mut samples = Vec::new();
    for field in &fields {
        let found = value(&here.clone(), field);
        properties.insert(field.clone(), found.schema);
        samples.push((field, found.sample));
    }
    let mut required: Vec<&String> = Vec::new();
    let mut given = String::new();
    while let Some(missed) = here.misses(&given) {
        let Some((field, sample)) = samples.iter().find(|(field, _)| **field == missed) else { break };
        if required.contains(field) {
            break;
        }
        required.push(field);
        given = [given.as_str(), &format!("{field} = {sample}")]
            .iter()
            .filter(|s| !s.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(", ");
    }
    let schema = json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    });
    Some(Found { schema, sample: format!("{{{given}}}") })
}

/// What the key `key` of the table at `here` may have.
fn value(here: &KeyPath, key: &str) -> Found {
    let mut forms = Vec::new();
    let mut sample = None;
    let mut about = None;
    let mut tabled = false;
    for (around, depth) in AROUND {
        let place = here.key(key, around);
        about = about.or_else(|| expected(&place));
        // The parser takes the fields of a table in a list too, without their names.
        let tables = if tabled { None } else { table(&place).or_else(|| names(&place)) };
        tabled |= tables.is_some();
        let mut here_may_stand = Vec::new();
        for Found { schema, sample: fits } in scalars(&place).into_iter().chain(tables) {
            here_may_stand.push(schema);
            sample.get_or_insert(format!("{}{fits}{}", around[0], around[1]));
        }
        if here_may_stand.is_empty() {
            continue;
        }
        let inner = any_of(here_may_stand);
        let listed = (0..depth).fold(inner, |items, _| json!({ "type": "array", "items": items }));
        if !forms.contains(&listed) {
            forms.push(listed);
        }
    }
    let mut schema = any_of(forms);
    if let (Some(about), Value::Object(fields)) = (about, &mut schema) {
        fields.insert("description".into(), json!(about));
    }
    Found { schema, sample: sample.unwrap_or_else(|| "{}".into()) }
}

fn any_of(mut forms: Vec<Value>) -> Value {
    match forms.len() {
        0 => json!({}),
        1 => forms.remove(0),
        _ => json!({ "anyOf": forms }),
    }
}

/// What the parser says it expects here.
fn expected(here: &KeyPath) -> Option<String> {
    let said = here.refused("-1").or_else(|| here.refused("\"no-such-word\""))?;
    said.rsplit_once("expected ").map(|(_, expected)| expected.to_owned())
}

/// Numbers, texts and truth values that may stand here.
fn scalars(here: &KeyPath) -> Vec<Found> {
    let mut found = Vec::new();
    let first = |of: &[&str]| of.iter().find(|v| here.refused(v).is_none()).map(|v| (*v).to_owned());
    if let Some(sample) = first(&NUMBERS) {
        found.push(Found { schema: number(here), sample });
    } else if let Some(sample) = first(&["0.5"]) {
        found.push(Found { schema: json!({ "type": "number" }), sample });
    }
    if let Some(sample) = first(&["true"]) {
        found.push(Found { schema: json!({ "type": "boolean" }), sample });
    }
    if let Some(sample) = first(&TEXTS) {
        found.push(Found { schema: json!({ "type": "string" }), sample });
    } else if let Some(said) = here.refused("\"no-such-word\"") {
        let named = between(&said, '`').into_iter().chain(between(&said, '"'));
        let words: Vec<String> = named.filter(|word| here.refused(&format!("{word:?}")).is_none()).collect();
        let example = said.contains("such as");
        if let Some(first) = words.first() {
            let sample = format!("{first:?}");
            let schema = if example { json!({ "type": "string" }) } else { json!({ "enum": words }) };
            found.push(Found { schema, sample });
        } else if let Some((_, expected)) = said.rsplit_once("expected ") {
            // Text with a syntax of its own, told without quotes.
            let samples = expected.split([',', ' ', ';']).map(|word| format!("{word:?}"));
            if let Some(sample) = samples.into_iter().find(|word| here.refused(word).is_none()) {
                found.push(Found { schema: json!({ "type": "string" }), sample });
            }
        }
    }
    found
}

/// Whole numbers, between the bounds that the parser names and keeps; any number where it takes fractions.
fn number(here: &KeyPath) -> Value {
    if here.refused("0.5").is_none() || here.refused("1.5").is_none() {
        return json!({ "type": "number" });
    }
    let said = here.refused("-1").unwrap_or_default();
    let bounds = said.rsplit_once(" from ").and_then(|(_, bounds)| bounds.split_once(" to "));
    let bounds = bounds.and_then(|(low, high)| {
        let digits: String = high.chars().take_while(char::is_ascii_digit).collect();
        Some((low.parse::<i64>().ok()?, digits.parse::<i64>().ok()?))
    });
    let taken = |n: i64| here.refused(&n.to_string()).is_none();
    match bounds {
        Some((low, high)) if taken(low) && taken(high) && !taken(low - 1) && !taken(high + 1) => {
            let within = json!({ "type": "integer", "minimum": low, "maximum": high });
            // None at all may be meant by 0.
            if low > 1 && taken(0) { any_of(vec![json!({ "enum": [0] }), within]) } else { within }
        }
        _ => json!({ "type": "integer" }),
    }
}

/// A table whose keys are the writer's own.
fn names(here: &KeyPath) -> Option<Found> {
    let of = |value: &str| here.refused(&format!("{{own = {value}}}")).is_none();
    (of("\"text\"") || of("[\"text\"]"))
        .then(|| Found { schema: json!({ "type": "object" }), sample: "{own = \"text\"}".into() })
}

/// What stands between pairs of a mark.
fn between(text: &str, mark: char) -> Vec<String> {
    text.split(mark).skip(1).step_by(2).filter(|word| *word != UNKNOWN).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `value` fits, by the keywords that this module writes.
    fn fits(schema: &Value, value: &Value) -> bool {
        let fields = schema.as_object().expect("an object");
        fields.iter().all(|(keyword, rule)| match keyword.as_str() {
            "type" => match rule.as_str().expect("a type") {
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("a type that is not known: {other}"),
            },
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.as_i64() >= rule.as_i64(),
            "maximum" => value.as_i64() <= rule.as_i64(),
            "anyOf" => rule.as_array().is_some_and(|all| all.iter().any(|schema| fits(schema, value))),
            "items" => value.as_array().is_none_or(|all| all.iter().all(|value| fits(rule, value))),
            "properties" => value.as_object().is_none_or(|all| {
                all.iter().all(|(key, value)| rule.get(key).is_some_and(|schema| fits(schema, value)))
            }),
            "required" => rule.as_array().is_some_and(|all| {
                all.iter().all(|key| key.as_str().is_some_and(|k| value.get(k).is_some()))
            }),
            // `properties` refuses what it does not know.
            "additionalProperties" => rule == &json!(false),
            "$schema" | "title" | "description" => true,
            other => panic!("a keyword that is not known: {other}"),
        })
    }

    fn judge(schema: &Value, text: &str) -> bool {
        fits(schema, &toml::from_str(text).expect("TOML"))
    }

    #[test]
    fn every_experiment_fits_and_what_is_no_experiment_does_not() {
        let schema: Value = serde_json::from_str(&text()).expect("JSON");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../labs");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).expect("labs/ is there") {
            let path = entry.expect("labs/ can be read").path();
            if path.extension().is_some_and(|e| e == "toml") {
                let text = std::fs::read_to_string(&path).expect("it can be read");
                let value: toml::Table = toml::from_str(&text).expect("TOML");
                let whole = |key: &str| fits(&schema["properties"][key], &json!(value[key]));
                let wrong: Vec<&String> = value.keys().filter(|key| !whole(key)).collect();
                assert!(judge(&schema, &text), "{} does not fit: {wrong:?}", path.display());
                files += 1;
            }
        }
        assert!(files > 30, "{files} experiments");
        let head = "title = \"t\"\nquestion = \"q\"\nruns = 5\nwarm_up = \"100ms\"\nwindow = \"1s\"\n";
        let with = |more: &str| judge(&schema, &format!("{head}{more}"));
        assert!(with("[[configuration]]\nsut = \"weir\"\nframe = [64, \"imix\"]\n"));
        assert!(!with(""), "there is no configuration");
        for wrong in [
            "[[configuration]]\ncolour = \"red\"\n",
            "[[configuration]]\nsut = \"wier\"\n",
            "[[configuration]]\nframe = 17\n",
            "[[configuration]]\nframe = [64, 17]\n",
            "control = 1\n[[configuration]]\n",
            "[[configuration]]\n[configuration.ipsec]\nmode = 5\n",
            "[quick]\nruns = 0\n[[configuration]]\n",
        ] {
            assert!(!with(wrong), "{wrong}");
        }
    }

    #[test]
    fn every_key_says_what_it_takes() {
        let schema: Value = serde_json::from_str(&text()).expect("JSON");
        fn walk(at: &str, schema: &Value, keys: &mut usize) {
            for (key, of) in schema["properties"].as_object().into_iter().flatten() {
                *keys += 1;
                let forms = ["type", "enum", "anyOf"].iter().any(|keyword| of.get(keyword).is_some());
                assert!(forms, "{at}.{key} takes anything: {of}");
                walk(&format!("{at}.{key}"), of, keys);
                for inner in of["anyOf"].as_array().into_iter().flatten().chain([&of["items"]]) {
                    walk(&format!("{at}.{key}"), inner, keys);
                    walk(&format!("{at}.{key}"), &inner["items"], keys);
                }
            }
        }
        let mut keys = 0;
        walk("file", &schema, &mut keys);
        assert!(keys > 80, "{keys} keys");
    }
}
