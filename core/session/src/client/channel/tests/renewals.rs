//! Messages about leases.

use super::*;
use ninep::dialect::{RENEW_DONE, RENEW_TERM};

#[test]
fn a_renewal_is_answered_with_what_it_asked_and_is_not_sent_in_another_session() {
    let mut bench = Bench::new(1);
    let (life, what) = (3, RENEW_TERM);
    bench.channel.push_control(ChannelControl::Renew { life, what, sent: at(7) });
    let sent = bench.turn();
    let reply = ExtReply::Renew { outcome: RENEW_DONE, term: 20 };
    let event = bench.channel.received(sent[0].id.tag, reply.into()).unwrap();
    let ChannelEvent::Renewed(renewed) = event else { panic!("{event:?}") };
    let expected = RenewReply { life, what, sent: at(7), outcome: RENEW_DONE, term: 20 };
    assert_eq!(renewed, expected);
    bench.channel.push_control(ChannelControl::Return { access: 9, done: true });
    bench.turn();
    bench.channel.push_control(ChannelControl::Renew { life, what, sent: at(8) });
    bench.lose();
    bench.restart(1, None);
    assert!(bench.turn().is_empty(), "they were of the session before");
}
