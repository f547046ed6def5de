//! The manifests: rendered, and checked against the schema and against what they have to mean. Real daemons run the
//! files in them. No cluster runs here.

mod broken;
mod checks;
mod component;
mod envoy;
mod files;
mod live;
mod nginx;
mod objects;
mod rendered;
mod store;
mod tree;
