//! The image, built and run as a container.
