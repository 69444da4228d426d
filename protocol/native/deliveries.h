/* The declarations of deliveries.c for Python. cffi reads this file without a preprocessor, so it has
   declarations only. */

/* Larger buffers are freed. Smaller ones are used again, and take about as much as the rest of a delivery. */
enum { LARGE_BYTES = 2048 };

/* Call this first, with the address of pn_decref. */
void deliveries_bind(uintptr_t decref);

/* Whether the fields of a delivery are where this file expects them. The other arguments are what proton's
   own functions return for this delivery: the parts of its remote state, and the number of bytes that it
   holds. */
bool deliveries_are_known(void *delivery, void *remote, void *info, void *data, void *annotations,
                          void *attachments, size_t pending);

/* Whether a delivery is settled by us, as proton's transfers say; returns what they said so far. */
bool deliveries_mark_settled(void *delivery, bool settled);

/* Whether proton has written a part of a delivery, or all of it: it numbers a delivery first. */
bool deliveries_is_begun(void *delivery);

/* Free the buffer of a delivery's payload if it is large. False if part of the payload was not read or
   written yet. */
bool deliveries_trim(void *delivery);

/* Drop what is left of the payloads of a link's deliveries, from `first` on. Returns how many bytes that
   was. */
size_t deliveries_drop_all(void *first);

/* `deliveries_trim`, and free what proton keeps of the peer's state, except for its type and flags. Call this
   when the event has been handled. */
void deliveries_forget(void *delivery);

/* `deliveries_trim` for many. Moves those with a payload left to the front, and returns their number. */
size_t deliveries_trim_all(void **deliveries, size_t count);

/* Sort deliveries by their delivery-ids. Proton writes one disposition for neighbours that are settled one
   after the other. */
void deliveries_sort(void **deliveries, size_t count);
