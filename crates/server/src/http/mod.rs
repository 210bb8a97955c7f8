//! Connections, and who may use them. Nothing here knows of models.
//!
//! [`connection`] accepts clients within [`limits`], [`connection_table`] decides who gives way where there is no place
//! left, [`socket`] is the byte stream below the HTTP implementation, and [`guard`] checks host, origin and API key.

pub(crate) mod connection;
pub(crate) mod connection_table;
pub(crate) mod guard;
pub(crate) mod limits;
pub(crate) mod loading;
pub(crate) mod origin;
pub(crate) mod socket;
