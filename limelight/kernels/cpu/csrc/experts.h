/* Gated MLPs of which each row takes a few: rows are grouped by expert when the pass runs, and each expert multiplies
   its rows alone, so that the weights of experts which no row chose are never read.

   A *choice* is a row's taking of one expert, number row * num_chosen + i. Choices are put in order of their experts: a
   *place* is the position of one there. What a choice gives does not depend on which others have the same expert, and a
   row adds its own up in the order of its choice. */
#ifndef LIMELIGHT_EXPERTS_H
#define LIMELIGHT_EXPERTS_H

#include "program.h"

#define PLACES_AT_ONCE 64

/* Places of one expert that are multiplied together. */
typedef struct {
    int32_t expert, first_place, num_places;
} Group;

/* Rows by the choice that takes them. */
typedef struct {
    const uint8_t *rows; /* [rows, row_bytes] */
    uint8_t *gathered;   /* [places, row_bytes]; places that are a group of their own stay where they are in `rows` */
    int64_t row_bytes;
} ChosenRows;

static inline const uint8_t *row_of_place(const ChosenRows *chosen, const int32_t *choices, int32_t num_chosen,
                                          int32_t place) {
    return chosen->rows + choices[place] / num_chosen * chosen->row_bytes;
}

#endif
