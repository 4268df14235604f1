//! Rows as comma-separated values (RFC 4180), for spreadsheets and statistics programs.
//!
//! One column per parameter and per link. A figure that was not measured, and a parameter with the value of the base
//! scenario, is an empty field. Lines end in LF.

use super::Row;

/// Returns a table of `rows`, which are of one sweep and therefore have the same parameters and links. The columns are
/// those of the first row that has figures.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let complete = rows.iter().find(|row| row.error.is_none());
    let Some(model) = complete.or(rows.first()) else {
        return String::new();
    };
    let mut head: Vec<String> = ["case", "seed", "policy"].map(str::to_owned).to_vec();
    head.extend(
        model
            .parameters
            .keys()
            .map(|key| format!("parameter:{key}")),
    );
    head.extend(FIGURES.map(str::to_owned));
    head.extend(
        model
            .links_mbps
            .keys()
            .map(|name| format!("link_mbps:{name}")),
    );
    head.push("error".to_owned());
    let mut text = line(&head);
    for row in rows {
        text.push_str(&line(&fields(row, model)));
    }
    text
}

/// Returns the fields of `row`, with the parameters and links of `model`.
fn fields(row: &Row, model: &Row) -> Vec<String> {
    let mut fields = vec![
        row.case.to_string(),
        row.seed.to_string(),
        row.policy.clone(),
    ];
    fields.extend(
        model
            .parameters
            .keys()
            .map(|key| match row.parameters.get(key) {
                None | Some(serde_json::Value::Null) => String::new(),
                Some(serde_json::Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            }),
    );
    let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
    fields.extend(
        [
            row.rate_mbps,
            row.share_of_best,
            row.share_of_sum,
            row.delay_ms.p50,
            row.delay_ms.p95,
            row.delay_ms.p99,
            row.loss,
        ]
        .map(number),
    );
    let retransmits = row.retransmits.map(|count| count.to_string());
    fields.push(retransmits.unwrap_or_default());
    let links = model.links_mbps.keys();
    fields.extend(links.map(|name| number(row.links_mbps.get(name).copied().flatten())));
    fields.push(row.error.clone().unwrap_or_default());
    fields
}

fn line(fields: &[String]) -> String {
    let quoted: Vec<String> = fields.iter().map(|field| quote(field)).collect();
    quoted.join(",") + "\n"
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// Columns of figures.
const FIGURES: [&str; 8] = [
    "rate_mbps",
    "share_of_best",
    "share_of_sum",
    "delay_p50_ms",
    "delay_p95_ms",
    "delay_p99_ms",
    "loss",
    "retransmits",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_the_columns_of_their_heads() {
        let mut row = Row {
            case: 3,
            cases: 9,
            seed: 1,
            policy: "adaptive".to_owned(),
            rate_mbps: Some(12.5),
            retransmits: Some(4),
            ..Row::default()
        };
        row.parameters
            .insert("link.dsl.rate".to_owned(), "10Mbit".into());
        row.parameters.insert("seed".to_owned(), 1.into());
        row.links_mbps.insert("dsl".to_owned(), Some(9.0));
        let failed = Row {
            error: Some("no \"tunnel\", at all".to_owned()),
            links_mbps: [].into(),
            rate_mbps: None,
            retransmits: None,
            ..row.clone()
        };
        assert_eq!(
            table(&[failed, row]),
            "case,seed,policy,parameter:link.dsl.rate,parameter:seed,rate_mbps,share_of_best,share_of_sum,delay_p50_ms,delay_p95_ms,delay_p99_ms,loss,retransmits,link_mbps:dsl,error\n\
             3,1,adaptive,10Mbit,1,,,,,,,,,,\"no \"\"tunnel\"\", at all\"\n\
             3,1,adaptive,10Mbit,1,12.5,,,,,,,4,9,\n"
        );
    }
}
