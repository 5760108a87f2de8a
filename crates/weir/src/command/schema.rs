//! `weir schema`: the configuration file as JSON Schema (draft 2020-12), for editors and other programs.

use serde_json::{Map, Value, json};

use crate::config::reference;
use crate::config::table::{Form, Key, Table};

/// The schema, indented, with a line's end.
pub fn text() -> String {
    let mut schema = table(&reference::FILE);
    if let Value::Object(fields) = &mut schema {
        fields.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
        fields.insert("title".to_owned(), json!("weir.toml"));
    }
    format!("{schema:#}\n")
}

fn table(table: &Table) -> Value {
    let properties: Map<String, Value> =
        table.keys.iter().map(|key| (key.name.to_owned(), described(key))).collect();
    let required: Vec<&str> = table.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    json!({
        "type": "object",
        "description": table.about,
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// A key's form with its description. The default is told in words: some are no value one could write.
fn described(key: &Key) -> Value {
    let about = match key.default {
        "" => key.about.to_owned(),
        default => format!("{} Default: {default}.", key.about),
    };
    let mut schema = form(&key.form);
    if let Value::Object(fields) = &mut schema {
        fields.insert("description".to_owned(), json!(about));
    }
    schema
}

fn form(of: &Form) -> Value {
    match of {
        Form::Text => json!({ "type": "string" }),
        Form::Boolean => json!({ "type": "boolean" }),
        Form::Integer(low, high) => json!({ "type": "integer", "minimum": low, "maximum": high }),
        Form::Words(words) => json!({ "enum": words }),
        // Editors offer the names; other spellings are for the parser to judge.
        Form::Names(names) => json!({ "anyOf": [{ "enum": names }, { "type": "string" }] }),
        Form::Table(of) => table(of),
        Form::OneOrMany(of) => json!({ "anyOf": [form(of), { "type": "array", "items": form(of) }] }),
        Form::List(of) => json!({ "type": "array", "items": form(of) }),
        Form::OneOf(forms) => json!({ "anyOf": forms.iter().map(form).collect::<Vec<_>>() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `value` fits, by the keywords that this module writes.
    fn fits(schema: &Value, value: &Value) -> bool {
        let Some(fields) = schema.as_object() else { return false };
        fields.iter().all(|(keyword, rule)| match keyword.as_str() {
            "type" => match rule.as_str() {
                Some("string") => value.is_string(),
                Some("boolean") => value.is_boolean(),
                Some("integer") => value.is_u64(),
                Some("array") => value.is_array(),
                Some("object") => value.is_object(),
                _ => panic!("a type that is not known: {rule}"),
            },
            "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => value.as_u64() >= rule.as_u64(),
            "maximum" => value.as_u64() <= rule.as_u64(),
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
            _ => panic!("a keyword that is not known: {keyword}"),
        })
    }

    fn is_valid(toml_text: &str) -> bool {
        let schema: Value = serde_json::from_str(&text()).expect("the schema is JSON");
        let value: Value = toml::from_str(toml_text).expect("the file is TOML");
        fits(&schema, &value)
    }

    #[test]
    fn the_examples_fit() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut files = 0;
        for entry in std::fs::read_dir(folder).expect("examples/ is there") {
            let path = entry.expect("examples/ can be read").path();
            if path.extension().is_some_and(|e| e == "toml") {
                let text = std::fs::read_to_string(&path).expect("an example can be read");
                assert!(is_valid(&text), "{} does not fit its schema", path.display());
                files += 1;
            }
        }
        assert!(files >= 4, "{files} examples");
    }

    #[test]
    fn what_no_table_has_does_not_fit() {
        let port = "[[port]]\nname = \"lan\"\ndevice = \"eth0\"\n";
        assert!(is_valid(port));
        assert!(!is_valid("[[port]]\nname = \"lan\"\n"), "a key is missing");
        assert!(!is_valid(&format!("{port}colour = \"red\"\n")), "a key is not known");
        assert!(!is_valid(&format!("{port}mtu = \"1500\"\n")), "a number is a text");
        assert!(!is_valid(&format!("{port}vlan = 4095\n")), "a number is too large");
        assert!(!is_valid(&format!("{port}rpf = \"tight\"\n")), "a word is not known");
        assert!(!is_valid("ports = []\n"), "a table is not known");
    }
}
