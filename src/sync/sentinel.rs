//! Asks the sentinels for the address of the master.
//!
//! All sentinels are asked at once, because some may be gone. Then the server is asked whether it is a master,
//! because a sentinel may have an old address.

use std::sync::Arc;

use redis::Value;
use tokio::task::JoinSet;

use super::address::StoreAddress;
use super::connect::{Connector, Purpose};
use super::error::{ErrorKind, StoreError};

/// The address of the master with this name.
pub(super) async fn master(
    connector: &Arc<Connector>,
    sentinels: &[StoreAddress],
    name: &str,
) -> Result<StoreAddress, StoreError> {
    let mut asked = JoinSet::new();
    for sentinel in sentinels {
        let (connector, sentinel, name) =
            (Arc::clone(connector), sentinel.clone(), name.to_owned());
        asked.spawn(async move {
            let address = ask(&connector, &sentinel, &name).await?;
            if is_master(&connector, &address).await? {
                Ok(address)
            } else {
                let words = "the server that the sentinel names is not a master";
                Err(StoreError::new(
                    ErrorKind::ReadOnly,
                    &address.to_string(),
                    words,
                ))
            }
        });
    }
    let mut failure = StoreError::new(ErrorKind::Connect, name, "no sentinel answers");
    while let Some(answer) = asked.join_next().await {
        match answer {
            Ok(Ok(address)) => return Ok(address),
            Ok(Err(error)) => failure = error,
            // The task was cancelled, which only happens when this call is.
            Err(_) => {}
        }
    }
    Err(failure)
}

async fn ask(
    connector: &Connector,
    sentinel: &StoreAddress,
    name: &str,
) -> Result<StoreAddress, StoreError> {
    let connection = connector.open(sentinel, Purpose::Sentinel, None).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = command.query_async(&mut connection.handle()).await;
    let answer: Option<(String, u16)> =
        answer.map_err(|error| connector.error(sentinel, &error))?;
    let address = answer.and_then(|(host, port)| StoreAddress::announced(&host, port, sentinel));
    address.ok_or_else(|| {
        let words = "the sentinel knows no master with this name";
        StoreError::new(ErrorKind::Connect, &sentinel.to_string(), words)
    })
}

async fn is_master(connector: &Connector, address: &StoreAddress) -> Result<bool, StoreError> {
    let connection = connector.open(address, Purpose::Calls, None).await?;
    let role = redis::cmd("ROLE")
        .query_async(&mut connection.handle())
        .await;
    let role: Vec<Value> = role.map_err(|error| connector.error(address, &error))?;
    Ok(matches!(role.first(), Some(Value::BulkString(role)) if role == b"master"))
}
