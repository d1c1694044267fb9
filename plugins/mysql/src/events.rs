//! Storing events. The event's own id is the key, so that one delivered twice is stored once.

use returner_sdk::rows::with_tag;
use returner_sdk::{Event, Verdict, all_stored};

use crate::connect::Db;
use crate::fault::Fault;
use crate::schema::EVENTS;
use crate::sql::{self, InsertRow, quote};

const HEAD: &str = "INSERT INTO `salt_events` (`id`, `tag`, `data`, `alter_time`, `master_id`) VALUES ";
const KEEP: &str = " ON DUPLICATE KEY UPDATE `id` = `salt_events`.`id`";

/// Stores a batch.
pub(crate) async fn deliver(db: &mut Db, events: &[Event]) -> Result<Vec<Verdict>, Fault> {
    let mut verdicts = all_stored(events);
    let mut order: Vec<usize> = (0..events.len()).collect();
    order.sort_by_key(|&index| events[index].id);
    let mut rows = Vec::with_capacity(events.len());
    for index in order {
        match row(db, &events[index]) {
            Ok(values) => rows.push(InsertRow { index, values }),
            Err(why) => verdicts[index] = Verdict::Reject(why),
        }
    }
    sql::insert(db, HEAD, &rows, KEEP, &mut verdicts).await?;
    Ok(verdicts)
}

/// The values of a row, or why it can never be stored. A tag that the column cannot hold is cut there and kept whole
/// in the data, under `__tag__`.
fn row(db: &mut Db, event: &Event) -> Result<String, String> {
    let (tag_column, data_column) = (db.schema.column(EVENTS, "tag"), db.schema.column(EVENTS, "data"));
    let tag = tag_column.cut(&event.tag);
    let data = match &tag {
        None => data_column.json(&event.data),
        Some(_) => {
            db.note_once("tag", || {
                format!(
                    "the column `tag` of `salt_events` is too narrow for `{}`: it is cut there and whole in `data` \
                     under `__tag__`",
                    event.tag
                )
            });
            let whole = with_tag(&event.data, &event.tag);
            data_column.json(&whole).into_owned().into()
        }
    };
    let master = db.schema.column(EVENTS, "master_id");
    if let Some(why) =
        data_column.too_long("data", &data).or_else(|| master.too_long("master_id", &event.master))
    {
        return Err(why);
    }
    let mut out = String::with_capacity(data.len() + event.tag.len() + 128);
    out.push_str(&format!("({},", event.id));
    quote(&mut out, tag.as_deref().unwrap_or(&event.tag));
    out.push(',');
    quote(&mut out, &data);
    out.push(',');
    out.push_str(&sql::moment(event.arrived_ms));
    out.push(',');
    quote(&mut out, &event.master);
    out.push(')');
    Ok(out)
}
