//! Walks a parsed TOML tree, keeping places, and complains about every value that is not what was
//! expected instead of stopping at the first.
//!
//! A getter returns `None` after it has complained, so callers go on with what is good.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{Complaints, nearest, write_instead};

/// A value with its place and what it is called in complaints (`port lan: mtu`).
#[derive(Clone, Debug)]
pub struct Value<'a> {
    pub value: &'a DeValue<'a>,
    pub span: Range<usize>,
    pub subject: String,
}

/// A table whose keys are all known.
#[derive(Debug)]
pub struct Fields<'a> {
    table: &'a DeTable<'a>,
    pub span: Range<usize>,
    /// `port lan`, `route 10.0.0.0/8`, `limits`; empty for the top of the file.
    pub subject: String,
}

impl<'a> Fields<'a> {
    /// Complains about each key that is not in `known`.
    pub fn new(
        table: &'a DeTable<'a>,
        span: Range<usize>,
        subject: String,
        known: &[&str],
        complaints: &mut Complaints,
    ) -> Self {
        for key in table.keys() {
            if known.contains(&key.get_ref().as_ref()) {
                continue;
            }
            let prefix = if subject.is_empty() { String::new() } else { format!("{subject}: ") };
            let remedy = match nearest(key.get_ref(), known) {
                Some(near) => format!("write `{near}`"),
                None => "remove it".to_owned(),
            };
            complaints.add(
                key.span(),
                format!(
                    "{prefix}`{}` is not a key here; expected {}; {remedy}",
                    key.get_ref(),
                    alternatives(known)
                ),
            );
        }
        Fields { table, span, subject }
    }

    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        let (_, value) = self.table.iter().find(|(k, _)| k.get_ref() == key)?;
        let subject = match self.subject.as_str() {
            "" => key.to_owned(),
            subject => format!("{subject}: {key}"),
        };
        Some(Value { value: value.get_ref(), span: value.span(), subject })
    }

    /// Complains at the table when the key is missing.
    pub fn required(&self, key: &str, example: &str, complaints: &mut Complaints) -> Option<Value<'a>> {
        let found = self.get(key);
        if found.is_none() {
            complaints
                .add(self.span.clone(), format!("{}: `{key}` is missing; write `{example}`", self.subject));
        }
        found
    }
}

impl<'a> Value<'a> {
    pub fn spanned(value: &'a Spanned<DeValue<'a>>, subject: String) -> Self {
        Value { value: value.get_ref(), span: value.span(), subject }
    }

    /// Where a key of this table has its value.
    pub fn inside(&self, key: &str) -> Option<Range<usize>> {
        let DeValue::Table(table) = self.value else { return None };
        Some(table.iter().find(|(k, _)| k.get_ref() == key)?.1.span())
    }

    /// `subject: got X, expected Y; remedy`.
    pub fn refuse(&self, expected: impl Display, remedy: impl Display, complaints: &mut Complaints) {
        let got = match self.value {
            DeValue::String(s) => format!("`{}`", shortened(s)),
            DeValue::Integer(n) => format!("{n}"),
            DeValue::Float(f) => format!("{f}"),
            DeValue::Boolean(b) => format!("{b}"),
            DeValue::Datetime(_) => "a date".to_owned(),
            DeValue::Array(a) if a.is_empty() => "an empty list".to_owned(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        complaints
            .add(self.span.clone(), format!("{}: got {got}, expected {expected}; {remedy}", self.subject));
    }

    pub fn text(&self, expected: &str, example: &str, complaints: &mut Complaints) -> Option<&'a str> {
        match self.value {
            DeValue::String(s) => Some(s.as_ref()),
            _ => {
                self.refuse(expected, format!("write `{example}`"), complaints);
                None
            }
        }
    }

    /// One of a few words.
    pub fn word<T: Copy>(&self, words: &[(&'static str, T)], complaints: &mut Complaints) -> Option<T> {
        self.word_or(words, &[], complaints)
    }

    /// One of a few words, or another spelling of one, which no complaint proposes.
    pub fn word_or<T: Copy>(
        &self,
        words: &[(&'static str, T)],
        spellings: &[(&'static str, T)],
        complaints: &mut Complaints,
    ) -> Option<T> {
        let known: Vec<&str> = words.iter().map(|w| w.0).collect();
        let DeValue::String(s) = self.value else {
            self.refuse(alternatives(&known), "write one of these, in quotes", complaints);
            return None;
        };
        let found = words.iter().chain(spellings).find(|w| w.0 == s.as_ref());
        if found.is_none() {
            self.refuse(alternatives(&known), write_instead(s, &known), complaints);
        }
        found.map(|w| w.1)
    }

    pub fn integer<T: TryFrom<u64> + Copy + Into<u64>>(
        &self,
        range: RangeInclusive<T>,
        example: T,
        complaints: &mut Complaints,
    ) -> Option<T> {
        let (low, high): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
        if let DeValue::Integer(n) = self.value {
            let n = u64::from_str_radix(n.as_str(), n.radix()).ok();
            if let Some(n) = n.filter(|n| (low..=high).contains(n)) {
                return T::try_from(n).ok();
            }
        }
        let example: u64 = example.into();
        self.refuse(format!("a number from {low} to {high}"), format!("write `{example}`"), complaints);
        None
    }

    /// A list's elements; a single value counts as a list of one.
    pub fn one_or_many(&self) -> Vec<Value<'a>> {
        match self.value {
            DeValue::Array(items) => items.iter().map(|v| Value::spanned(v, self.subject.clone())).collect(),
            _ => vec![self.clone()],
        }
    }

    pub fn table(&self, known: &[&str], example: &str, complaints: &mut Complaints) -> Option<Fields<'a>> {
        match self.value {
            DeValue::Table(table) => {
                Some(Fields::new(table, self.span.clone(), self.subject.clone(), known, complaints))
            }
            _ => {
                self.refuse("a table", format!("write `{example}`"), complaints);
                None
            }
        }
    }
}

/// `"a", "b" or "c"`, with backticks as in complaints.
pub fn alternatives(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [one] => format!("`{one}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|w| format!("`{w}`")).collect();
            format!("{} or `{last}`", first.join(", "))
        }
    }
}

/// Text as quoted in a complaint: one line, 60 characters.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 60;
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}
