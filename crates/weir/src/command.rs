//! What each verb of the command line does, a module a verb; [`crate::cli`] says how they are called.

pub mod apply;
pub mod capture;
pub mod check;
pub mod completions;
pub mod daemon;
pub mod derper;
pub mod doctor;
pub mod genkey;
pub mod man;
pub mod monitor;
pub mod policy;
pub mod relay;
pub mod relay_map;
pub mod release;
pub mod running;
pub mod schema;
pub mod show;
pub mod state;
pub mod top;
pub mod trace;
