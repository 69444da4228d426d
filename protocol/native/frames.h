/* The functions of frames.c that Python calls. Read by cffi, like runs.h. */

/* Skip whole frames, from `offset` on, that protocol/frames.py need not look at: frames of at most `small`
   bytes, and plain transfers without an extended header whose first bytes do not contain the format of a
   batch. Returns the offset of the first other frame, or of the incomplete frame at the end. */
size_t frames_pass(const char *data, size_t offset, size_t size, size_t small);
