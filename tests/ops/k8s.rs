//! The manifests: rendered, held against the schema, and against what they have to mean.
