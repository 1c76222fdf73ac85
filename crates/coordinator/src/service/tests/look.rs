//! Sessions of programs: the answer reaches the hand-over, a look is activity, a failed look is the session's end.

use serde_json::json;

use super::*;
use crate::Caller;

fn program_session() -> Ask {
    Ask {
        spec: SessionSpec {
            browser: BrowserKind::Command,
            data: json!({"job": 7}),
            timeouts: Timeouts {
                connect: None,
                ..Timeouts::default()
            },
            ..SessionSpec::default()
        },
        ..ask()
    }
}

async fn program_rig() -> Rig {
    let rig = rig(2, 10).await;
    *rig.link.answer.lock() = Some(Ok(json!({"id": "theirs"})));
    rig
}

#[tokio::test(start_paused = true)]
async fn answer_of_the_program_reaches_the_hand_over_with_the_clients_data() {
    let rig = program_rig().await;
    let handover = rig.service.open(program_session()).await.unwrap();
    assert_eq!(handover.answer, Some(json!({"id": "theirs", "data": {"job": 7}})));
    let session = handover.delivered().id;
    assert_eq!(rig.look(session).await.unwrap()["id"], "theirs");
    rig.service.end(session, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}

#[tokio::test(start_paused = true)]
async fn look_is_activity_and_without_it_the_session_is_idle() {
    let rig = program_rig().await;
    let session = rig.service.open(program_session()).await.unwrap().delivered().id;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        rig.look(session).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let record = rig.service.session(session).await.unwrap();
    assert_eq!(record.reason(), Some(EndReason::IdleTimeout));
    rig.is_empty("idle").await;
}

#[tokio::test(start_paused = true)]
async fn failed_look_ends_the_session_with_the_reason_that_fits_and_its_cause() {
    for (error, reason) in [
        (
            LinkError::BrowserHung("no answer within 5s".into()),
            EndReason::BrowserHung,
        ),
        (
            LinkError::BrowserUnreachable("status 404".into()),
            EndReason::BrowserCrashed,
        ),
        (LinkError::NotHeld, EndReason::BrowserCrashed),
    ] {
        let rig = program_rig().await;
        let session = rig.service.open(program_session()).await.unwrap().delivered().id;
        *rig.link.answer.lock() = Some(Err(error.clone()));
        let refusal = rig.look(session).await.unwrap_err();
        assert_eq!((refusal.code, refusal.reason), (ErrorCode::SessionEnded, Some(reason)));
        assert!(refusal.message.contains(&error.to_string()), "{}", refusal.message);
        rig.is_empty("lost").await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_look_gives_the_supervisor_the_first_word() {
    let rig = program_rig().await;
    let session = rig.service.open(program_session()).await.unwrap().delivered().id;
    *rig.link.answer.lock() = Some(Err(LinkError::BrowserUnreachable("connection reset".into())));
    let supervisor = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let detail = Some("signal 11: last words".to_owned());
        rig.store.end(session, EndReason::OutOfMemory, detail).await.unwrap();
    };
    let (refusal, ()) = tokio::join!(rig.look(session), supervisor);
    let refusal = refusal.unwrap_err();
    assert_eq!(refusal.reason, Some(EndReason::OutOfMemory));
    assert!(refusal.message.contains("last words"), "{}", refusal.message);
    rig.is_empty("out of memory").await;
}

#[tokio::test(start_paused = true)]
async fn worker_that_cannot_be_reached_costs_an_answer_and_not_the_session() {
    let rig = program_rig().await;
    let session = rig.service.open(program_session()).await.unwrap().delivered().id;
    *rig.link.answer.lock() = Some(Err(LinkError::Unreachable("it is still starting".into())));
    let refusal = rig.look(session).await.unwrap_err();
    assert_eq!(refusal.code, ErrorCode::WorkerUnreachable);
    assert_eq!(rig.service.session(session).await.unwrap().reason(), None);
    rig.service.end(session, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}

#[tokio::test(start_paused = true)]
async fn websocket_to_a_program_is_refused_with_the_way_out() {
    let rig = program_rig().await;
    let session = rig.service.open(program_session()).await.unwrap().delivered().id;
    let attach = rig
        .service
        .attach(
            Caller::Anyone,
            session,
            DialTarget::Browser,
            super::super::OnLeave::AsMade,
        )
        .await;
    let refusal = attach.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::InvalidRequest);
    assert!(
        refusal.message.contains(&format!("/sessions/{session}")),
        "{}",
        refusal.message
    );
    assert_eq!(
        rig.service.session(session).await.unwrap().reason(),
        None,
        "it lives on"
    );
    rig.service.end(session, EndReason::Released, None).await.unwrap();
    rig.is_empty("afterwards").await;
}
