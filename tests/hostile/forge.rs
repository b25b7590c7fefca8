//! Snapshots in which one number is another.

use serde_json::Value;

/// Every number in a value, by the path to it.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Number(_) => found.push(path.to_owned()),
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                numbers(item, &format!("{path}/{n}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                numbers(field, &format!("{path}/{name}"), found);
            }
        }
        _ => {}
    }
}

/// The snapshot with each of its numbers replaced by others, one at a time; each with what was replaced.
pub fn forgeries(snapshot: &[u8]) -> Vec<(String, Vec<u8>)> {
    let sound: Value = serde_json::from_slice(snapshot).unwrap();
    let mut places = Vec::new();
    numbers(&sound, "", &mut places);
    assert!(places.len() > 20, "{places:?}");
    let mut forgeries = Vec::new();
    for place in places {
        for number in [0, 1, 7, 8, 255, 0x7fff_ffff, u64::from(u32::MAX), u64::MAX] {
            let mut forged = sound.clone();
            *forged.pointer_mut(&place).unwrap() = number.into();
            forgeries.push((format!("{place} = {number}"), serde_json::to_vec(&forged).unwrap()));
        }
    }
    forgeries
}
