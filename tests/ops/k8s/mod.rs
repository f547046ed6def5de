//! The manifests: rendered, held against the schema, and against what they have to mean; and the files in them, run by
//! the real daemons. No cluster runs here.

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
