//! The ordered policies of an SPD, as wished for.
//!
//! Promises: copies share the policies themselves, so that a copy of a large list costs its length in
//! pointers, and two lists with the same ones compare at that price; a policy is put between two others by
//! moving a few pointers, at most 2 KB of them, however many policies there are.

use std::iter::{Flatten, Map};
use std::ops::{Index, IndexMut};
use std::slice::Iter;
use std::sync::Arc;

use super::PolicySpec;
use crate::chunked::Chunked;

/// Policies in order: the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies(Chunked<Arc<PolicySpec>>);

impl Policies {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, at: usize) -> Option<&PolicySpec> {
        self.0.get(at).map(AsRef::as_ref)
    }

    pub fn iter(&self) -> <&Policies as IntoIterator>::IntoIter {
        self.into_iter()
    }

    pub fn push(&mut self, policy: impl Into<Arc<PolicySpec>>) {
        self.0.push(policy.into());
    }

    /// Puts a policy before number `at`.
    pub fn insert(&mut self, at: usize, policy: impl Into<Arc<PolicySpec>>) {
        self.0.insert(at, policy.into());
    }

    pub fn remove(&mut self, at: usize) -> Arc<PolicySpec> {
        self.0.remove(at)
    }

    /// Puts a policy in the place of number `at`; returns what was there.
    pub fn replace(&mut self, at: usize, policy: impl Into<Arc<PolicySpec>>) -> Arc<PolicySpec> {
        std::mem::replace(self.shared(at), policy.into())
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn sort_by_key<K: Ord>(&mut self, key: impl Fn(&PolicySpec) -> K) {
        let mut all: Vec<Arc<PolicySpec>> = self.0.iter().cloned().collect();
        all.sort_by_key(|policy| key(policy));
        self.0 = all.into_iter().collect();
    }

    fn shared(&mut self, at: usize) -> &mut Arc<PolicySpec> {
        let len = self.len();
        self.0.get_mut(at).unwrap_or_else(|| panic!("policy {at} of {len}"))
    }
}

impl Index<usize> for Policies {
    type Output = PolicySpec;

    fn index(&self, at: usize) -> &PolicySpec {
        self.get(at).unwrap_or_else(|| panic!("policy {at} of {}", self.len()))
    }
}

impl IndexMut<usize> for Policies {
    /// The policy, to be changed: it is a copy of its own from here on.
    fn index_mut(&mut self, at: usize) -> &mut PolicySpec {
        Arc::make_mut(self.shared(at))
    }
}

impl<'a> IntoIterator for &'a Policies {
    type Item = &'a PolicySpec;
    type IntoIter = Map<Flatten<Iter<'a, Vec<Arc<PolicySpec>>>>, fn(&'a Arc<PolicySpec>) -> &'a PolicySpec>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(AsRef::as_ref)
    }
}

impl FromIterator<PolicySpec> for Policies {
    fn from_iter<I: IntoIterator<Item = PolicySpec>>(policies: I) -> Self {
        Policies(policies.into_iter().map(Arc::new).collect())
    }
}

impl FromIterator<Arc<PolicySpec>> for Policies {
    fn from_iter<I: IntoIterator<Item = Arc<PolicySpec>>>(policies: I) -> Self {
        Policies(policies.into_iter().collect())
    }
}

impl From<Vec<PolicySpec>> for Policies {
    fn from(policies: Vec<PolicySpec>) -> Self {
        policies.into_iter().collect()
    }
}
