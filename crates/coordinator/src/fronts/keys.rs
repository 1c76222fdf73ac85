//! `/v1/keys`: make, list, limit and revoke API keys.
//!
//! Its own file because the secret is shown in exactly one answer: the one to whoever made the key.

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
};
use http::{HeaderMap, StatusCode};
use rand::RngExt;
use uuid::Uuid;
use wharf_core::{ErrorCode, KeyId, KeyToken};
use wharf_store::{KeyRecord, KeyRole, NewKey};
use wharf_wire::{
    pool::{ChangeKey, CreateKey, KeyBody, KeyList, KeyRoleBody},
    rest::ErrorBody,
};

use super::{Front, body};
use crate::Refusal;

const NAME_LIMIT: usize = 100;

/// All keys, revoked ones included, without their secrets.
#[utoipa::path(
    get, path = "/v1/keys", tag = "keys",
    responses((status = 200, description = "By age", body = KeyList))
)]
pub async fn list(State(front): State<Front>) -> Result<Json<KeyList>, Refusal> {
    let keys = front.service.inner().store.keys().await?;
    Ok(Json(KeyList {
        keys: keys.iter().map(shape).collect(),
    }))
}

/// Make a key. The answer is the only one that shows it; the first key closes an open grid.
#[utoipa::path(
    post, path = "/v1/keys", tag = "keys", request_body = CreateKey,
    responses(
        (status = 201, description = "The key, with its secret", body = KeyBody)
    )
)]
pub async fn create(
    State(front): State<Front>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<KeyBody>), Refusal> {
    let wanted: CreateKey = body::required(front.service.config(), &headers, body).await?;
    if wanted.role == KeyRoleBody::Client && !has_admin(&front).await? {
        return Err(Refusal::invalid(
            "`role`: the first key must be an admin's, or nobody could look after this grid any more",
        ));
    }
    let token = KeyToken::mint(KeyId::from_uuid(Uuid::now_v7()), rand::rng().random());
    let key = NewKey {
        id: token.id(),
        name: body::text("name", wanted.name, 1..=NAME_LIMIT)?,
        hash: token.hash(),
        role: match wanted.role {
            KeyRoleBody::Client => KeyRole::Client,
            KeyRoleBody::Admin => KeyRole::Admin,
        },
        max_sessions: wanted
            .max_sessions
            .map(|max| body::within("max_sessions", max))
            .transpose()?,
    };
    let record = front.service.inner().store.create_key(key).await?;
    front.service.key_made();
    tracing::info!(key = %record.id, name = record.name, "key made");
    let body = KeyBody {
        token: Some(token.reveal()),
        ..shape(&record)
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// Change how many sessions a key may hold. Less than it holds ends nothing.
#[utoipa::path(
    patch, path = "/v1/keys/{id}", tag = "keys", request_body = ChangeKey,
    params(("id" = String, Path, description = "The key's id", pattern = "^key_[0-9a-f]{32}$")),
    responses(
        (status = 200, description = "The key as it is now", body = KeyBody),
        (status = 404, description = "No such key", body = ErrorBody)
    )
)]
pub async fn change(
    State(front): State<Front>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<KeyBody>, Refusal> {
    let id = parse(&id)?;
    let wanted: ChangeKey = body::required(front.service.config(), &headers, body).await?;
    let quota = wanted
        .max_sessions
        .map(|max| body::within("max_sessions", max))
        .transpose()?;
    let changed = front.service.inner().store.set_quota(id, quota).await?;
    changed
        .as_ref()
        .map(|record| Json(shape(record)))
        .ok_or_else(|| unknown(id))
}

/// Revoke a key for ever; its sessions end as `policy`. Idempotent.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", tag = "keys",
    params(("id" = String, Path, description = "The key's id", pattern = "^key_[0-9a-f]{32}$")),
    responses(
        (status = 204, description = "It is worth nothing"),
        (status = 404, description = "No such key", body = ErrorBody)
    )
)]
pub async fn revoke(State(front): State<Front>, Path(id): Path<String>) -> Result<StatusCode, Refusal> {
    let id = parse(&id)?;
    let Some((record, freed)) = front.service.inner().store.revoke_key(id).await? else {
        return Err(unknown(id));
    };
    tracing::info!(key = %id, name = record.name, ended = freed.ended.len(), "key revoked");
    Ok(StatusCode::NO_CONTENT)
}

async fn has_admin(front: &Front) -> Result<bool, Refusal> {
    let keys = front.service.inner().store.keys().await?;
    Ok(keys
        .iter()
        .any(|key| key.role == KeyRole::Admin && key.revoked_at.is_none()))
}

fn parse(id: &str) -> Result<KeyId, Refusal> {
    id.parse()
        .map_err(|error| Refusal::new(ErrorCode::InvalidId, format!("{error}")))
}

fn unknown(id: KeyId) -> Refusal {
    Refusal::new(ErrorCode::KeyNotFound, format!("there is no key {id}"))
}

fn shape(record: &KeyRecord) -> KeyBody {
    KeyBody {
        id: record.id,
        name: record.name.clone(),
        role: match record.role {
            KeyRole::Client => KeyRoleBody::Client,
            KeyRole::Admin => KeyRoleBody::Admin,
        },
        max_sessions: record.max_sessions,
        sessions: record.held,
        created_at: record.created_at,
        used_at: record.used_at,
        revoked_at: record.revoked_at,
        token: None,
    }
}
