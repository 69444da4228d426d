/* What Python sees of deliveries.c. Read by cffi, which knows no preprocessor: declarations only. */

enum { LARGE_BYTES = 2048 }; /* room that is given back; less will be used again, and takes about as much as the rest of the delivery */

/* To be called first, with the address of pn_decref. */
void deliveries_bind(uintptr_t decref);

/* Whether the fields of a delivery are where this file expects them: by what proton's own functions say of one that was asked for each of
   these parts of its remote state, and holds `pending` bytes. */
bool deliveries_are_known(void *delivery, void *remote, void *info, void *data, void *annotations, void *attachments, size_t pending);

/* Give back the room of a delivery's payload if it is large and all of the payload was read or written; false while some is left. */
bool deliveries_trim(void *delivery);

/* The same, and what proton keeps of the peer's state, its type and flags excepted. To be called once the event was dealt with. */
void deliveries_forget(void *delivery);

/* The same for many. Those with something left are moved to the front; gives how many they are. */
size_t deliveries_trim_all(void **deliveries, size_t count);
