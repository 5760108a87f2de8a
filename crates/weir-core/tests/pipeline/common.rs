//! A router and a gateway with the sample network around them, and both ends of an SA.

pub mod sas;
pub mod site;
pub mod world;
