//! Storing events. The event's own id is the key, so that one delivered twice is stored once. Ids from the table's
//! sequence, which Salt's own returner takes, are far below them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use returner_sdk::rows::with_tag;
use returner_sdk::{Event, Verdict, all_stored};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::{Column, EVENTS, Kind};
use crate::sql::{Insert, Row, moment};

const KEY: &[&str] = &["id"];
const COLUMNS: [&str; 5] = ["id", "tag", "data", "alter_time", "master_id"];

/// Stores a batch.
pub(crate) async fn deliver(db: &mut Db, events: &[Event]) -> Result<Vec<Verdict>, Fault> {
    let columns = COLUMNS.map(|name| db.schema.column(EVENTS, name));
    if columns[0].kind == Kind::ShortInteger {
        return Err(Fault::Later(
            "the column `id` of `salt_events` is too small for events' ids; \
             hint: ALTER TABLE salt_events ALTER COLUMN id TYPE bigint"
                .into(),
        ));
    }
    let mut verdicts = all_stored(events);
    let firsts: BTreeMap<u64, usize> =
        events.iter().enumerate().rev().map(|(index, event)| (event.id, index)).collect();
    let mut rows = Vec::with_capacity(firsts.len());
    for &index in firsts.values() {
        match row(db, &columns, &events[index]) {
            Ok(texts) => rows.push(Row { index, texts }),
            Err(why) => verdicts[index] = Verdict::Reject(why),
        }
    }
    Insert::new(&db.schema, EVENTS, KEY, &COLUMNS).run(db, &rows, &mut verdicts).await?;
    for (index, event) in events.iter().enumerate() {
        if let Some(&first) = firsts.get(&event.id) {
            verdicts[index] = verdicts[first].clone();
        }
    }
    Ok(verdicts)
}

/// The values of a row, or why it can never be stored. A tag that the column cannot hold is cut there and kept whole
/// in the data, under `__tag__`.
fn row<'a>(db: &mut Db, columns: &[Column; 5], event: &'a Event) -> Result<Vec<Cow<'a, str>>, String> {
    let [_, tag, data, _, master] = columns;
    if let Some(why) = master.too_long("master_id", &event.master) {
        return Err(why);
    }
    let cut = tag.cut(&event.tag);
    let document = match &cut {
        None => data.json(&event.data),
        Some(_) => {
            db.note_once("tag", || {
                format!(
                    "the column `tag` of `salt_events` is too narrow for `{}`: it is cut there and whole in `data` \
                     under `__tag__`",
                    event.tag
                )
            });
            Cow::Owned(data.json(&with_tag(&event.data, &event.tag)).into_owned())
        }
    };
    Ok(vec![
        Cow::Owned(event.id.to_string()),
        cut.map_or(Cow::Borrowed(event.tag.as_str()), Cow::Owned),
        document,
        Cow::Owned(moment(event.arrived_ms)),
        Cow::Borrowed(&event.master),
    ])
}
