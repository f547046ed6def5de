//! The admin listener's page, in a browser.
