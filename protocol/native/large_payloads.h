/* The declarations of large_payloads.c for Python. cffi reads this file without a preprocessor, so it has
   declarations only. */

/* Frames of at least this size are looked at: the payload of a smaller one is copied for less than it costs
   to keep it aside. */
enum { LARGE_FRAME_BYTES_MIN = 4096 };

/* Where a payload is in the data. */
typedef struct {
    size_t begin, end;
} payload_t;

/* Skip frames, from `offset` on, as long as they are small and start before `end`. Returns the offset of the
   first large frame, or of a frame header that has not arrived completely; otherwise the end of the last
   frame, which may lie beyond the data. */
size_t large_skip(const char *data, size_t offset, size_t size, size_t end);

/* Where the payload of a transfer begins in its frame, given the first bytes of the frame. 0 if the frame is
   no plain transfer, or has no large payload; `size` + 1 if more bytes are needed to tell. */
size_t large_payload(const char *frame, size_t size, size_t frame_bytes);

/* Copy large plain transfers, from `offset` on, to `heads`, each with a reference in place of its payload:
   the `mark`, then a number that counts from `first`. Returns the offset of the first other frame, or of one
   that has not arrived completely. `heads_bytes` and `count` are set to what was written to `heads` and to
   `payloads`. */
size_t large_take(const char *data, size_t offset, size_t size, size_t frame_max, const char *mark,
                  uint32_t first, char *heads, size_t heads_max, size_t *heads_bytes, payload_t *payloads,
                  size_t payloads_max, size_t *count);

/* A frame that ends with a reference: where both begin, and the reference's number. */
typedef struct {
    size_t frame, reference;
    uint32_t number;
} reference_t;

/* Find the frames, from `offset` on, that end with a reference; `references_max` of them at most. Returns how
   many were found. `next` is set to the offset of the first frame that was not looked at. The data consists
   of whole frames. */
size_t large_find(const char *data, size_t offset, size_t size, const char *mark, reference_t *references,
                  size_t references_max, size_t *next);
