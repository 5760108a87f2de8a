//! What a table of the configuration file may hold, in one place for who checks a file, for `man weir.toml` and for the
//! JSON Schema: each parser keeps the list of its keys as [`Key`]s and takes their names from it.

/// A table of the file, such as `[[port]]`.
#[derive(Debug)]
pub struct Table {
    /// The table as it is written: `[[port]]`, `[limits]`, or `via = { … }` for one that stands in a line.
    pub heading: &'static str,
    /// One or two sentences about what the table is for.
    pub about: &'static str,
    pub keys: &'static [Key],
}

/// A key of a table.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub form: Form,
    pub required: bool,
    /// What holds without the key; empty where the description says it or nothing does.
    pub default: &'static str,
    /// What the key does, in sentences.
    pub about: &'static str,
}

/// What a value may be.
#[derive(Debug)]
pub enum Form {
    /// A text whose syntax the description tells.
    Text,
    Boolean,
    /// The least and the greatest number.
    Integer(u64, u64),
    /// One of these words and nothing else.
    Words(&'static [&'static str]),
    /// One of these words, or a spelling of other programs that means the same.
    Names(&'static [&'static str]),
    Table(&'static Table),
    /// Several values of this form; one alone needs no list.
    OneOrMany(&'static Form),
    /// Several values of this form, always in a list: `[[port]]` for tables.
    List(&'static Form),
    /// Any of these forms.
    OneOf(&'static [Form]),
}

impl Key {
    pub const fn new(name: &'static str, form: Form, about: &'static str) -> Key {
        Key { name, form, required: false, default: "", about }
    }

    pub const fn required(name: &'static str, form: Form, about: &'static str) -> Key {
        Key { name, form, required: true, default: "", about }
    }

    pub const fn with_default(
        name: &'static str,
        form: Form,
        default: &'static str,
        about: &'static str,
    ) -> Key {
        Key { name, form, required: false, default, about }
    }
}

/// The names of keys, for who checks that a file has no other.
pub const fn names<const N: usize>(keys: &[Key; N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = keys[i].name;
        i += 1;
    }
    names
}
